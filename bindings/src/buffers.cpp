#include "buffers.hpp"

#include "shared_sums.hpp"
#include "sums.hpp"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

namespace ccl_backend {

void check_tensor(const at::Tensor& tensor, const char* operation) {
  CCL_CHECK(!tensor.is_sparse() && tensor.layout() == at::kStrided,
            operation, " needs a dense tensor, found layout ", tensor.layout(), " (sparse tensors: use gloo)");
  CCL_CHECK(tensor.device().is_cpu(), operation, " needs a tensor in host memory, found device ", tensor.device());
}

at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation) {
  CCL_CHECK(tensors.size() == 1, operation, " needs a single tensor, found ", tensors.size());
  check_tensor(tensors.front(), operation);
  return tensors.front();
}

void check_like(const at::Tensor& tensor, const at::Tensor& like, int64_t elements, const char* operation) {
  check_tensor(tensor, operation);
  CCL_CHECK(tensor.scalar_type() == like.scalar_type(),
            operation, ": expected tensors of one type, found ", tensor.scalar_type(), " and ", like.scalar_type());
  CCL_CHECK(elements < 0 || tensor.numel() == elements,
            operation, ": expected a tensor of ", elements, " elements, found ", tensor.numel(), " elements, sizes ",
            tensor.sizes());
}

at::Tensor readable(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

at::Tensor writable(const at::Tensor& tensor) {
  const auto plain = tensor.detach();
  const bool usable = plain.is_contiguous() && !plain.is_conj() && !plain.is_neg();
  return usable ? plain : at::empty(plain.sizes(), plain.options().memory_format(at::MemoryFormat::Contiguous));
}

void write_back(const at::Tensor& tensor, const at::Tensor& buffer) {
  if (tensor.data_ptr() != buffer.data_ptr()) {
    tensor.detach().copy_(buffer);
  }
}

Bytes::Bytes(const std::vector<at::Tensor>& buffers) {
  pointers.reserve(buffers.size());
  counts.reserve(buffers.size());
  for (const auto& buffer : buffers) {
    pointers.push_back(buffer.data_ptr());
    counts.push_back(buffer.nbytes());
  }
}

Block::Block(std::vector<at::Tensor> given) : parts(std::move(given)) {
  const Bytes bytes(parts);
  const char* end = nullptr;
  int64_t total = 0;
  bool is_block = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (bytes.counts[i] == 0) {
      continue;
    }
    const auto* begin = static_cast<const char*>(bytes.pointers[i]);
    is_block = is_block && (end == nullptr || begin == end);
    end = begin + bytes.counts[i];
    total += static_cast<int64_t>(bytes.counts[i]);
  }
  if (!is_block) {
    copy = at::empty({total}, at::kByte);
  }
}

void Block::gather() const {
  if (copy.defined()) {
    auto* to = static_cast<char*>(copy.data_ptr());
    for (const auto& part : parts) {
      std::memcpy(to, part.data_ptr(), part.nbytes());
      to += part.nbytes();
    }
  }
}

void Block::scatter() const {
  if (copy.defined()) {
    const auto* from = static_cast<const char*>(copy.data_ptr());
    for (const auto& part : parts) {
      std::memcpy(part.data_ptr(), from, part.nbytes());
      from += part.nbytes();
    }
  }
}

void* Block::data() const {
  if (copy.defined()) {
    return copy.data_ptr();
  }
  const auto first =
      std::find_if(parts.begin(), parts.end(), [](const at::Tensor& part) { return part.nbytes() > 0; });
  return first == parts.end() ? nullptr : first->data_ptr();
}

at::Tensor reduce_locally(const at::Tensor& gathered, const Op& op) {
  auto result = gathered.select(0, 0);
  const auto how = find_reduction(op, gathered.scalar_type());
  if (how && (how->operation == ccl::reduction::min || how->operation == ccl::reduction::max)) {
    const auto combine = custom_function(how->datatype, how->operation);
    for (int64_t rank = 1; rank < gathered.size(0); ++rank) {
      combine(gathered.select(0, rank).data_ptr(), result.numel(), result.data_ptr(), nullptr, how->datatype, nullptr);
    }
    return result;
  }
  if (gathered.scalar_type() == at::kBFloat16) {
    if (kind_of(op) == OpKind::PRODUCT) {
      return gathered.to(at::kFloat).prod(0).to(at::kBFloat16);
    }
    const auto rows = Bytes(gathered.unbind(0)).pointers;
    const KeepSubnormals guard;
    sum_function(ccl::datatype::bfloat16)(
        rows.data(), static_cast<int>(rows.size()), result.data_ptr(), result.nbytes());
    return result;
  }
  for (int64_t rank = 1; rank < gathered.size(0); ++rank) {
    const auto other = gathered.select(0, rank);
    switch (kind_of(op)) {
      case OpKind::BAND:
        result.bitwise_and_(other);
        break;
      case OpKind::BOR:
        result.bitwise_or_(other);
        break;
      case OpKind::BXOR:
        result.bitwise_xor_(other);
        break;
      default:
        CCL_CHECK(false, "ReduceOp.", op_name(op), " is not supported");
    }
  }
  return result;
}

void premultiply(at::Tensor& tensor, const Op& op) {
  const c10::InferenceMode guard;
  CCL_CHECK(multiply_by_factor(tensor, op), "ReduceOp.PREMUL_SUM needs a factor, found none");
}

at::Tensor premultiplied(const at::Tensor& tensor, const Op& op) {
  if (kind_of(op) != kPremulSum) {
    return tensor;
  }
  auto product = tensor.clone();
  premultiply(product, op);
  return product;
}

void finish_reduction(at::Tensor& buffer, const Op& op, int size) {
  if (kind_of(op) != kAverage) {
    return;
  }
  if (at::isIntegralType(buffer.scalar_type(), /*includeBool=*/false)) {
    buffer.div_(size, "trunc");
  } else {
    buffer.div_(size);
  }
}

} // namespace ccl_backend
