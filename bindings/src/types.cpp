#include "types.hpp"

#include <ATen/ATen.h>

#include <map>

namespace ccl_backend {
namespace {

const std::map<at::ScalarType, ccl::datatype> kDatatypes = {
    {at::kByte, ccl::datatype::uint8},
    {at::kChar, ccl::datatype::int8},
    {at::kShort, ccl::datatype::int16},
    {at::kInt, ccl::datatype::int32},
    {at::kLong, ccl::datatype::int64},
#if TORCH_SINCE(2, 3)
    {at::kUInt16, ccl::datatype::uint16},
    {at::kUInt32, ccl::datatype::uint32},
    {at::kUInt64, ccl::datatype::uint64},
#endif
    {at::kHalf, ccl::datatype::float16},
    {at::kBFloat16, ccl::datatype::bfloat16},
    {at::kFloat, ccl::datatype::float32},
    {at::kDouble, ccl::datatype::float64},
};

// AVG is a sum followed by a division (finish_reduction): oneCCL's CPU path does not support ccl::reduction::avg.
const std::map<OpKind, ccl::reduction> kReductions = {
    {OpKind::SUM, ccl::reduction::sum},
    {kAverage, ccl::reduction::sum},
    {kPremulSum, ccl::reduction::sum},
    {OpKind::PRODUCT, ccl::reduction::prod},
    {OpKind::MIN, ccl::reduction::min},
    {OpKind::MAX, ccl::reduction::max},
};

// A bool is the byte 0 or 1: "or" is the maximum, "and" the minimum.
const std::map<OpKind, ccl::reduction> kBoolReductions = {
    {OpKind::SUM, ccl::reduction::max},
    {OpKind::MAX, ccl::reduction::max},
    {OpKind::BOR, ccl::reduction::max},
    {OpKind::PRODUCT, ccl::reduction::min},
    {OpKind::MIN, ccl::reduction::min},
    {OpKind::BAND, ccl::reduction::min},
};

const std::map<OpKind, std::string> kNames = {
    {OpKind::SUM, "SUM"},
    {kAverage, "AVG"},
    {OpKind::PRODUCT, "PRODUCT"},
    {OpKind::MIN, "MIN"},
    {OpKind::MAX, "MAX"},
    {OpKind::BAND, "BAND"},
    {OpKind::BOR, "BOR"},
    {OpKind::BXOR, "BXOR"},
    {kPremulSum, "PREMUL_SUM"},
};

bool is_bitwise(const Op& op) {
  return kind_of(op) == OpKind::BAND || kind_of(op) == OpKind::BOR || kind_of(op) == OpKind::BXOR;
}

} // namespace

std::string op_name(const Op& op) {
  const auto found = kNames.find(kind_of(op));
  return found == kNames.end() ? "UNUSED" : found->second;
}

std::optional<Reduction> find_reduction(const Op& op, at::ScalarType type) {
  if (type == at::kBool) {
    if (kind_of(op) == OpKind::BXOR) {
      return std::nullopt;
    }
    const auto found = kBoolReductions.find(kind_of(op));
    CCL_CHECK(found != kBoolReductions.end(), "cannot reduce bool with ReduceOp.", op_name(op));
    return Reduction{ccl::datatype::uint8, found->second, 1};
  }
  if (is_bitwise(op)) {
    CCL_CHECK(
        at::isIntegralType(type, /*includeBool=*/false),
        "ReduceOp.", op_name(op), " needs an integer type, found ", type);
    return std::nullopt;
  }
  const auto operation = kReductions.find(kind_of(op));
  CCL_CHECK(operation != kReductions.end(), "ReduceOp.", op_name(op), " is not supported");
  CCL_CHECK(
      kind_of(op) != kPremulSum || at::isFloatingType(type),
      "ReduceOp.PREMUL_SUM needs a floating point type, found ", type);
  if (at::isComplexType(type)) {
    CCL_CHECK(
        kind_of(op) == OpKind::SUM || kind_of(op) == kAverage,
        "all_reduce does not support ReduceOp.", op_name(op), " on complex tensors, only SUM and AVG");
    const auto real = kDatatypes.find(real_type_of(type));
    CCL_CHECK(real != kDatatypes.end(), "cannot reduce tensors of type ", type);
    return Reduction{real->second, operation->second, 2};
  }
#if TORCH_SINCE(2, 3)
  CCL_CHECK(
      kind_of(op) != kAverage || (type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64),
      "torch cannot divide tensors of type ", type, ", so ReduceOp.AVG does not support them: use SUM");
#endif
  const auto datatype = kDatatypes.find(type);
  CCL_CHECK(datatype != kDatatypes.end(), "cannot reduce tensors of type ", type);
  return Reduction{datatype->second, operation->second, 1};
}

} // namespace ccl_backend
