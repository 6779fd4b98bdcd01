#include "types.hpp"

#include "releases.hpp"

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
const std::map<Op::RedOpType, ccl::reduction> kReductions = {
    {Op::SUM, ccl::reduction::sum},
    {Op::AVG, ccl::reduction::sum},
    {Op::PREMUL_SUM, ccl::reduction::sum},
    {Op::PRODUCT, ccl::reduction::prod},
    {Op::MIN, ccl::reduction::min},
    {Op::MAX, ccl::reduction::max},
};

// A bool is the byte 0 or 1: "or" is the maximum, "and" the minimum.
const std::map<Op::RedOpType, ccl::reduction> kBoolReductions = {
    {Op::SUM, ccl::reduction::max},
    {Op::MAX, ccl::reduction::max},
    {Op::BOR, ccl::reduction::max},
    {Op::PRODUCT, ccl::reduction::min},
    {Op::MIN, ccl::reduction::min},
    {Op::BAND, ccl::reduction::min},
};

const std::map<Op::RedOpType, std::string> kNames = {
    {Op::SUM, "SUM"},
    {Op::AVG, "AVG"},
    {Op::PRODUCT, "PRODUCT"},
    {Op::MIN, "MIN"},
    {Op::MAX, "MAX"},
    {Op::BAND, "BAND"},
    {Op::BOR, "BOR"},
    {Op::BXOR, "BXOR"},
    {Op::PREMUL_SUM, "PREMUL_SUM"},
};

bool is_bitwise(const Op& op) {
  return op.op_ == Op::BAND || op.op_ == Op::BOR || op.op_ == Op::BXOR;
}

} // namespace

std::string op_name(const Op& op) {
  const auto found = kNames.find(op.op_);
  return found == kNames.end() ? "UNUSED" : found->second;
}

std::optional<Reduction> find_reduction(const Op& op, at::ScalarType type) {
  if (type == at::kBool) {
    if (op.op_ == Op::BXOR) {
      return std::nullopt;
    }
    const auto found = kBoolReductions.find(op.op_);
    CCL_CHECK(found != kBoolReductions.end(), "cannot reduce bool with ReduceOp.", op_name(op));
    return Reduction{ccl::datatype::uint8, found->second, 1};
  }
  if (is_bitwise(op)) {
    CCL_CHECK(
        at::isIntegralType(type, /*includeBool=*/false),
        "ReduceOp.", op_name(op), " needs an integer type, found ", type);
    return std::nullopt;
  }
  const auto operation = kReductions.find(op.op_);
  CCL_CHECK(operation != kReductions.end(), "ReduceOp.", op_name(op), " is not supported");
  CCL_CHECK(
      op.op_ != Op::PREMUL_SUM || at::isFloatingType(type),
      "ReduceOp.PREMUL_SUM needs a floating point type, found ", type);
  if (at::isComplexType(type)) {
    CCL_CHECK(
        op.op_ == Op::SUM || op.op_ == Op::AVG,
        "all_reduce does not support ReduceOp.", op_name(op), " on complex tensors, only SUM and AVG");
    const auto real = kDatatypes.find(at::toRealValueType(type));
    CCL_CHECK(real != kDatatypes.end(), "cannot reduce tensors of type ", type);
    return Reduction{real->second, operation->second, 2};
  }
  const auto datatype = kDatatypes.find(type);
  CCL_CHECK(datatype != kDatatypes.end(), "cannot reduce tensors of type ", type);
  return Reduction{datatype->second, operation->second, 1};
}

} // namespace ccl_backend
