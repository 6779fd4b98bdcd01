#include "sums.hpp"

#include "shared_sums.hpp"

#include <cstdlib>
#include <cstring>

// The compiler vectorizes the loop below once for each target; the loader selects the best supported one.
#define VECTORS __attribute__((target_clones("arch=skylake-avx512", "avx2", "default"), optimize("O3")))

namespace ccl_backend {
namespace {

// A bfloat16 is the upper half of a float32.
inline float widen(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide)); // the compiler of Debian 11 has no std::bit_cast
  return wide;
}

inline uint16_t round_to_even(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void add(const uint16_t* from, uint16_t* to, size_t count) {
  const void* const both[] = {from, to};
  sum_function(ccl::datatype::bfloat16)(both, 2, to, count * sizeof(*to));
}

VECTORS void multiply(const uint16_t* __restrict from, uint16_t* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = round_to_even(widen(from[i]) * widen(to[i]));
  }
}

template <void (*combine)(const uint16_t*, uint16_t*, size_t)>
void reduce(const void* in, size_t count, void* in_out, size_t* out_count, ccl::datatype, const ccl::fn_context*) {
  const KeepSubnormals guard;
  combine(static_cast<const uint16_t*>(in), static_cast<uint16_t*>(in_out), count);
  if (out_count != nullptr) {
    *out_count = count;
  }
}

} // namespace

ccl::reduction_fn bfloat16_function(ccl::reduction operation) {
  switch (operation) {
    case ccl::reduction::sum:
      return reduce<add>;
    case ccl::reduction::prod:
      return reduce<multiply>;
    default:
      return nullptr;
  }
}

bool oneccl_rounds_bfloat16() {
  const char* const chosen = std::getenv("CCL_BF16");
  return __builtin_cpu_supports("avx512bf16") && (chosen == nullptr || std::strcmp(chosen, "avx512bf") == 0);
}

} // namespace ccl_backend
