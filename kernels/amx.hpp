// Products of small bfloat16 matrices in the cache, with AMX: one instruction multiplies 16 rows of 32 numbers by 32
// rows of 16 numbers, and adds the products to sums in float32. Operands and sums are as in tiles.hpp, and padded with
// zeros to whole tiles.
//
// The instruction (TDPBF16PS) sums a word's even and odd numbers in two chains of fused multiply-adds, adds both to the
// sum, rounds to nearest even, and takes denormals as zero. With AMX_MODEL, a model of the instructions takes their
// place: tests then run the code for AMX on CPUs without it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cpuid.h>

#include "tiles.hpp"

namespace amx {

constexpr size_t ROWS = 16, WORDS = 16, NUMBERS = 2 * WORDS;

} // namespace amx

#ifdef AMX_MODEL
#include "amx_model.hpp"
#else
#ifdef NO_AMX // an assembler that does not know the instructions, see build-kernels
#define AMX_INSTRUCTION(...) __builtin_trap()
#else
#define AMX_INSTRUCTION(...) asm volatile(__VA_ARGS__)
#endif

namespace amx {

// Whether the CPU has the instructions and Linux (5.16 or later) lets this process use their registers.
inline bool permitted() {
#ifdef NO_AMX
  return false;
#endif
  constexpr unsigned TILES = 1u << 24, BFLOAT16 = 1u << 22; // leaf 7, EDX
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;          // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & TILES) == 0 || (edx & BFLOAT16) == 0) {
    return false;
  }
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// The shape of the tiles of this thread, for the lifetime of the object: each is 16 rows of 64 bytes.
class Configured {
 public:
  explicit Configured(bool used) : used_(used) {
    if (used_) {
      struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } const shapes;
      static_assert(sizeof shapes == 64);
      AMX_INSTRUCTION("ldtilecfg %0" ::"m"(shapes) : "memory");
    }
  }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;
  ~Configured() {
    if (used_) {
      AMX_INSTRUCTION("tilerelease" ::: "memory");
    }
  }

 private:
  bool used_;
};

template <int TILE>
inline void load(const void* from, size_t bytes) {
  AMX_INSTRUCTION("tileloadd (%0, %1, 1), %%tmm%c2" ::"r"(from), "r"(bytes), "i"(TILE) : "memory");
}

template <int TILE>
inline void store(void* to, size_t bytes) {
  AMX_INSTRUCTION("tilestored %%tmm%c2, (%0, %1, 1)" ::"r"(to), "r"(bytes), "i"(TILE) : "memory");
}

template <int TILE>
inline void clear() {
  AMX_INSTRUCTION("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int SUMS, int LEFT, int RIGHT>
inline void multiply() {
  AMX_INSTRUCTION("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(LEFT), "i"(RIGHT));
}

} // namespace amx
#endif

namespace amx {

// M x N tiles of sums, in registers 0 .. 3; the operands are in 4 and 5, 6 and 7.
template <int M, int N, bool ADDS>
inline void block(tiles::Left left, tiles::Right right, tiles::Sums sums, size_t pairs) {
  const size_t left_bytes = left.row_step * sizeof(uint32_t), right_bytes = right.pair_step * sizeof(uint32_t);
  const size_t sum_bytes = sums.row_step * sizeof(float);
  float *const below = sums.values + ROWS * sums.row_step, *const beside = sums.values + tiles::LANES;
  if constexpr (ADDS) {
    load<0>(sums.values, sum_bytes);
    if constexpr (N == 2) load<1>(beside, sum_bytes);
    if constexpr (M == 2) load<2>(below, sum_bytes);
    if constexpr (M == 2 && N == 2) load<3>(below + tiles::LANES, sum_bytes);
  } else {
    clear<0>();
    if constexpr (N == 2) clear<1>();
    if constexpr (M == 2) clear<2>();
    if constexpr (M == 2 && N == 2) clear<3>();
  }
  for (size_t pair = 0; pair < pairs; pair += WORDS) {
    const uint32_t *const rows = left.words + pair, *const columns = right.words + pair * right.pair_step;
    load<6>(columns, right_bytes);
    load<4>(rows, left_bytes);
    multiply<0, 4, 6>();
    if constexpr (N == 2) {
      load<7>(columns + tiles::LANES, right_bytes);
      multiply<1, 4, 7>();
    }
    if constexpr (M == 2) {
      load<5>(rows + ROWS * left.row_step, left_bytes);
      multiply<2, 5, 6>();
    }
    if constexpr (M == 2 && N == 2) multiply<3, 5, 7>();
  }
  store<0>(sums.values, sum_bytes);
  if constexpr (N == 2) store<1>(beside, sum_bytes);
  if constexpr (M == 2) store<2>(below, sum_bytes);
  if constexpr (M == 2 && N == 2) store<3>(below + tiles::LANES, sum_bytes);
}

// As tiles::product. `rows` and `columns` are padded to 16 and `pairs` is a multiple of 16; pairs of the left operand
// are contiguous.
template <bool ADDS>
inline void product(tiles::Left left, tiles::Right right, tiles::Sums sums, size_t rows, size_t columns, size_t pairs) {
  for (size_t column = 0; column < columns; column += 2 * tiles::LANES) {
    const bool two_columns = column + tiles::LANES < columns;
    for (size_t row = 0; row < rows; row += 2 * ROWS) {
      const bool two_rows = row + ROWS < rows;
      const auto compute = two_rows ? (two_columns ? block<2, 2, ADDS> : block<2, 1, ADDS>)
                                    : (two_columns ? block<1, 2, ADDS> : block<1, 1, ADDS>);
      compute({left.words + row * left.row_step, left.row_step, 1}, {right.words + column, right.pair_step},
              {sums.values + row * sums.row_step + column, sums.row_step}, pairs);
    }
  }
}

} // namespace amx
