// The instructions of AMX that amx.hpp uses, as a model with AVX-512 that gives the same bits. Included by amx.hpp.
// A thread that uses tiles without a configuration is stopped.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace amx {

struct Tiles {
  bool configured = false;
  alignas(64) uint32_t words[8][ROWS][WORDS] = {};
};

inline thread_local Tiles tiles_of_thread;

inline uint32_t (*tile(int number))[WORDS] {
  if (!tiles_of_thread.configured) {
    __builtin_trap();
  }
  return tiles_of_thread.words[number];
}

inline bool permitted() {
  return true;
}

class Configured {
 public:
  explicit Configured(bool used) : used_(used) {
    if (used_) {
      tiles_of_thread = {true, {}};
    }
  }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;
  ~Configured() {
    if (used_) {
      tiles_of_thread.configured = false;
    }
  }

 private:
  bool used_;
};

template <int TILE>
inline void load(const void* from, size_t bytes) {
  for (size_t row = 0; row < ROWS; ++row) {
    std::memcpy(tile(TILE)[row], static_cast<const char*>(from) + row * bytes, sizeof(uint32_t[WORDS]));
  }
}

template <int TILE>
inline void store(void* to, size_t bytes) {
  for (size_t row = 0; row < ROWS; ++row) {
    std::memcpy(static_cast<char*>(to) + row * bytes, tile(TILE)[row], sizeof(uint32_t[WORDS]));
  }
}

template <int TILE>
inline void clear() {
  std::memset(tile(TILE), 0, sizeof(uint32_t[ROWS][WORDS]));
}

AVX512_BF16 inline __m512 even_of(__m512i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

AVX512_BF16 inline __m512 odd_of(__m512i words) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Each lane is a column. The compiler does not see through the call, and so keeps its arithmetic between the changes of
// the rounding mode.
__attribute__((noipa)) AVX512_BF16 inline void multiply_rows(uint32_t (*sums)[WORDS], const uint32_t (*left)[WORDS],
                                                             const uint32_t (*right)[WORDS]) {
  for (size_t row = 0; row < ROWS; ++row) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (size_t pair = 0; pair < WORDS; ++pair) {
      const __m512i one = _mm512_set1_epi32(static_cast<int>(left[row][pair])), many = _mm512_loadu_si512(right[pair]);
      even = _mm512_fmadd_ps(even_of(one), even_of(many), even);
      odd = _mm512_fmadd_ps(odd_of(one), odd_of(many), odd);
    }
    const __m512 before = _mm512_loadu_ps(sums[row]);
    _mm512_storeu_ps(sums[row], _mm512_add_ps(before, _mm512_add_ps(even, odd)));
  }
}

template <int SUMS, int LEFT, int RIGHT>
inline void multiply() {
  constexpr unsigned NEAREST_WITHOUT_DENORMALS = 0x9fc0; // MXCSR: no exceptions, FTZ, DAZ
  const unsigned before = _mm_getcsr();
  _mm_setcsr(NEAREST_WITHOUT_DENORMALS);
  multiply_rows(tile(SUMS), tile(LEFT), tile(RIGHT));
  _mm_setcsr(before);
}

} // namespace amx
