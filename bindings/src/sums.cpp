#include "sums.hpp"

#include "shared_sums.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

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

// `Bits` is the signed integer of the floating point type's size.
template <typename Bits, Bits kInfinity, Bits kNan, bool kIsMinimum>
void find_extreme(const Bits* from, Bits* to, size_t count) {
  constexpr auto kMagnitude = std::numeric_limits<Bits>::max();
  const auto is_nan = [](Bits bits) { return (bits & kMagnitude) > kInfinity; };
  // Integers in the order of the numbers: the magnitude of a negative number is inverted. Its own inverse.
  const auto ordered = [](Bits bits) { return static_cast<Bits>(bits < 0 ? bits ^ kMagnitude : bits); };
  for (size_t i = 0; i < count; ++i) {
    const Bits one = ordered(from[i]);
    const Bits other = ordered(to[i]);
    const Bits extreme = (one < other) == kIsMinimum ? one : other;
    to[i] = is_nan(from[i]) || is_nan(to[i]) ? kNan : ordered(extreme);
  }
}

template <typename Element, void (*combine)(const Element*, Element*, size_t)>
void reduce(const void* in, size_t count, void* in_out, size_t* out_count, ccl::datatype, const ccl::fn_context*) {
  const KeepSubnormals guard;
  combine(static_cast<const Element*>(in), static_cast<Element*>(in_out), count);
  if (out_count != nullptr) {
    *out_count = count;
  }
}

template <bool kIsMinimum>
ccl::reduction_fn extreme_function(ccl::datatype type) {
  switch (type) {
    case ccl::datatype::float16:
      return reduce<int16_t, find_extreme<int16_t, 0x7c00, 0x7e00, kIsMinimum>>;
    case ccl::datatype::bfloat16:
      return reduce<int16_t, find_extreme<int16_t, 0x7f80, 0x7fc0, kIsMinimum>>;
    case ccl::datatype::float32:
      return reduce<int32_t, find_extreme<int32_t, 0x7f800000, 0x7fc00000, kIsMinimum>>;
    case ccl::datatype::float64:
      return reduce<int64_t, find_extreme<int64_t, 0x7ff0000000000000, 0x7ff8000000000000, kIsMinimum>>;
    default:
      return nullptr;
  }
}

} // namespace

ccl::reduction_fn custom_function(ccl::datatype type, ccl::reduction operation) {
  const bool is_bfloat16 = type == ccl::datatype::bfloat16;
  switch (operation) {
    case ccl::reduction::sum:
      return is_bfloat16 ? reduce<uint16_t, add> : nullptr;
    case ccl::reduction::prod:
      return is_bfloat16 ? reduce<uint16_t, multiply> : nullptr;
    case ccl::reduction::min:
      return extreme_function<true>(type);
    case ccl::reduction::max:
      return extreme_function<false>(type);
    default:
      return nullptr;
  }
}

bool oneccl_rounds_bfloat16() {
  const char* const chosen = std::getenv("CCL_BF16");
  return __builtin_cpu_supports("avx512bf16") && (chosen == nullptr || std::strcmp(chosen, "avx512bf") == 0);
}

} // namespace ccl_backend
