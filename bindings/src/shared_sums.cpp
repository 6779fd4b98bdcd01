#include "shared_sums.hpp"

#include <cstdint>
#include <cstring>

// The functions below add vectors that are as wide as the CPU's registers, because the compiler does not vectorize a
// loop over several arrays. All of them are inlined into add_512, add_256 and add_128.
#define INLINE inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi" // about vectors as results of functions that are not inlined

namespace ccl_backend {
namespace {

template <typename Element, size_t kBytes>
struct VectorOf {
  using Type __attribute__((vector_size(kBytes))) = Element;
};
template <typename Element, size_t kBytes>
using Vector = typename VectorOf<Element, kBytes>::Type;
template <size_t kBytes>
using Words = Vector<uint32_t, kBytes>;
template <size_t kBytes>
using Floats = Vector<float, kBytes>;

template <typename To, typename From>
INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Types that are added as they are.
template <typename Element>
struct Plain {
  template <size_t kBytes>
  static INLINE Vector<Element, kBytes> widen(const Words<kBytes>& words) {
    return same_bits<Vector<Element, kBytes>>(words);
  }
  template <size_t kBytes>
  static INLINE Words<kBytes> narrow(const Vector<Element, kBytes>& sum) {
    return same_bits<Words<kBytes>>(sum);
  }
};

// The lower and the upper 16-bit numbers of words, as float32.
template <size_t kBytes>
struct Pair {
  INLINE Pair& operator+=(const Pair& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  Floats<kBytes> low;
  Floats<kBytes> high;
};

// The upper half of a float32.
struct Bfloat16 {
  template <size_t kBytes>
  static INLINE Pair<kBytes> widen(const Words<kBytes>& words) {
    return {same_bits<Floats<kBytes>>(words << 16), same_bits<Floats<kBytes>>(words & 0xffff0000u)};
  }
  template <size_t kBytes>
  static INLINE Words<kBytes> narrow(const Pair<kBytes>& sum) {
    return round<kBytes>(sum.low) >> 16 | (round<kBytes>(sum.high) & 0xffff0000u);
  }
  // The upper half is the result.
  template <size_t kBytes>
  static INLINE Words<kBytes> round(const Floats<kBytes>& values) {
    const auto bits = same_bits<Words<kBytes>>(values);
    return values == values ? bits + (bits >> 16 & 1u) + 0x7fffu : bits * 0 + 0x7fc00000u;
  }
};

struct Float16 {
  template <size_t kBytes>
  static INLINE Pair<kBytes> widen(const Words<kBytes>& words) {
    return {widen_one<kBytes>(words & 0xffffu), widen_one<kBytes>(words >> 16)};
  }
  template <size_t kBytes>
  static INLINE Words<kBytes> narrow(const Pair<kBytes>& sum) {
    return narrow_one<kBytes>(sum.low) | narrow_one<kBytes>(sum.high) << 16;
  }
  template <size_t kBytes>
  static INLINE Floats<kBytes> widen_one(const Words<kBytes>& number) {
    const auto magnitude = number & 0x7fffu;
    // The exponents differ by 112. The product is exact, also for subnormal numbers.
    const auto scaled = same_bits<Words<kBytes>>(same_bits<Floats<kBytes>>(magnitude << 13) * 0x1p112f);
    const auto infinite = scaled | 0x7f800000u; // or not a number
    return same_bits<Floats<kBytes>>((magnitude >= 0x7c00u ? infinite : scaled) | (number & 0x8000u) << 16);
  }
  template <size_t kBytes>
  static INLINE Words<kBytes> narrow_one(const Floats<kBytes>& values) {
    const auto all = same_bits<Words<kBytes>>(values);
    const auto bits = all & 0x7fffffffu;
    // The addition rounds a subnormal result at the position of its last bit.
    const auto small = same_bits<Words<kBytes>>(same_bits<Floats<kBytes>>(bits) + 0.5f) - 0x3f000000u;
    const auto normal = (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13;
    const auto large = bits > 0x7f800000u ? bits * 0 + 0x7e00u : bits * 0 + 0x7c00u;
    return (bits >= 0x47800000u ? large : bits < 0x38800000u ? small : normal) | (all >> 16 & 0x8000u);
  }
};

// The last words of an array may be fewer than in a vector.
template <typename Type, size_t kBytes>
INLINE auto load(const void* source, size_t begin, size_t bytes) {
  Words<kBytes> words{};
  std::memcpy(&words, static_cast<const char*>(source) + begin, bytes);
  return Type::template widen<kBytes>(words);
}

template <typename Type, size_t kBytes>
INLINE void add_vectors(const void* const* sources, int ranks, void* to, size_t begin, size_t bytes) {
  auto sum = load<Type, kBytes>(sources[0], begin, bytes);
  for (int rank = 1; rank < ranks; ++rank) {
    sum += load<Type, kBytes>(sources[rank], begin, bytes);
  }
  const auto result = Type::template narrow<kBytes>(sum);
  std::memcpy(static_cast<char*>(to) + begin, &result, bytes);
}

template <typename Type, size_t kBytes>
INLINE void add_arrays(const void* const* sources, int ranks, void* to, size_t bytes) {
  size_t begin = 0;
  for (; begin + kBytes <= bytes; begin += kBytes) {
    add_vectors<Type, kBytes>(sources, ranks, to, begin, kBytes);
  }
  if (begin < bytes) {
    add_vectors<Type, kBytes>(sources, ranks, to, begin, bytes - begin);
  }
}

template <typename Type, size_t kBytes>
INLINE void add_any(const void* const* sources, int ranks, void* to, size_t bytes) {
  if (ranks == 2) { // without a loop over the ranks
    add_arrays<Type, kBytes>(sources, 2, to, bytes);
  } else {
    add_arrays<Type, kBytes>(sources, ranks, to, bytes);
  }
}

template <typename Type>
__attribute__((target("avx512f,avx512bw"))) void add_512(
    const void* const* sources, int ranks, void* to, size_t bytes) {
  add_any<Type, 64>(sources, ranks, to, bytes);
}
template <typename Type>
__attribute__((target("avx2"))) void add_256(const void* const* sources, int ranks, void* to, size_t bytes) {
  add_any<Type, 32>(sources, ranks, to, bytes);
}
template <typename Type>
void add_128(const void* const* sources, int ranks, void* to, size_t bytes) {
  add_any<Type, 16>(sources, ranks, to, bytes);
}

template <typename Type>
SumFunction best() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return add_512<Type>;
  }
  return __builtin_cpu_supports("avx2") ? add_256<Type> : add_128<Type>;
}

} // namespace

SumFunction sum_function(ccl::datatype type) {
  switch (type) {
    case ccl::datatype::float32:
      return best<Plain<float>>();
    case ccl::datatype::float64:
      return best<Plain<double>>();
    case ccl::datatype::bfloat16:
      return best<Bfloat16>();
    case ccl::datatype::float16:
      return best<Float16>();
    // Unsigned, also for signed integers: the same bits, and overflow is defined.
    case ccl::datatype::int8:
    case ccl::datatype::uint8:
      return best<Plain<uint8_t>>();
    case ccl::datatype::int16:
    case ccl::datatype::uint16:
      return best<Plain<uint16_t>>();
    case ccl::datatype::int32:
    case ccl::datatype::uint32:
      return best<Plain<uint32_t>>();
    case ccl::datatype::int64:
    case ccl::datatype::uint64:
      return best<Plain<uint64_t>>();
    default:
      return nullptr;
  }
}

} // namespace ccl_backend
