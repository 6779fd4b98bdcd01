#include "steps.hpp"

#include "shared_steps.hpp"
#include "sums.hpp"

#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace ccl_backend {
namespace {

// Data that is not reduced is transferred as bytes, so every type of tensor is supported.
constexpr auto kByteType = ccl::datatype::int8;

Tensors readable_all(const Tensors& tensors) {
  Tensors buffers;
  for (const auto& tensor : tensors) {
    buffers.push_back(readable(tensor));
  }
  return buffers;
}

Tensors writable_all(const Tensors& tensors) {
  Tensors buffers;
  for (const auto& tensor : tensors) {
    buffers.push_back(writable(tensor));
  }
  return buffers;
}

void write_back_all(const Tensors& tensors, const Tensors& buffers) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    write_back(tensors[i], buffers[i]);
  }
}

// A Step::finish that copies the buffer to the tensor; empty if they share memory.
std::function<void()> write_back_later(const at::Tensor& tensor, const at::Tensor& buffer) {
  if (tensor.data_ptr() == buffer.data_ptr()) {
    return nullptr;
  }
  return [tensor, buffer] { write_back(tensor, buffer); };
}

std::function<void()> finish_later(const at::Tensor& tensor, const at::Tensor& buffer, const Op& op, int size) {
  if (kind_of(op) != kAverage) {
    return write_back_later(tensor, buffer);
  }
  return [tensor, buffer = at::Tensor(buffer), op, size]() mutable {
    finish_reduction(buffer, op, size);
    write_back(tensor, buffer);
  };
}

void check_list(const Tensors& tensors, const at::Tensor& like, Ranks ranks, const char* name) {
  CCL_CHECK(
      static_cast<int>(tensors.size()) == ranks.size,
      name, ": expected a list of ", ranks.size, " tensors, one for each rank, found ", tensors.size());
  for (const auto& tensor : tensors) {
    check_like(tensor, like, -1, name);
  }
}

size_t count_of(const at::Tensor& buffer, const Reduction& how) {
  return static_cast<size_t>(buffer.numel() * how.width);
}

bool is_extreme(const Reduction& how) {
  return how.operation == ccl::reduction::min || how.operation == ccl::reduction::max;
}

// oneCCL's all-reduce is its only collective that takes a custom function.
ccl::event reduce_all(char* data, size_t count, const Reduction& how, const ccl::communicator& comm) {
  auto operation = how.operation;
  auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
  if (const auto function = custom_function(how.datatype, how.operation)) {
    operation = ccl::reduction::custom;
    attributes.set<ccl::allreduce_attr_id::reduction_fn>(function);
  }
  return ccl::allreduce(data, data, count, how.datatype, operation, comm, attributes);
}

// `size` equal parts of the tensor, as views.
Tensors split(const at::Tensor& tensor, int size) {
  return tensor.view({size, tensor.numel() / size}).unbind(0);
}

// `result` receives the reduction, without the division of AVG, of parts that this rank gathers.
Step gather_to_reduce_step(
    const at::Tensor& result, const at::Tensor& input, const Op& op, Ranks ranks, const char* name) {
  auto gathered = at::empty({ranks.size, result.numel()}, input.options());
  auto step = exchange_step(gathered.unbind(0), split(input, ranks.size), ranks, name);
  step.finish = [exchanged = step.finish, result, gathered, op] {
    exchanged();
    result.copy_(reduce_locally(gathered, op).view_as(result));
  };
  return step;
}

} // namespace

Step broadcast_step(const at::Tensor& tensor, int root, const char* name) {
  check_tensor(tensor, name);
  auto buffer = readable(tensor);
  return {
      [buffer, root](const ccl::communicator& comm, Events& events) {
        if (buffer.nbytes() > 0) {
          events.push_back(ccl::broadcast(buffer.data_ptr(), buffer.nbytes(), kByteType, root, comm));
        }
      },
      write_back_later(tensor, buffer)};
}

Step reduce_all_step(const at::Tensor& tensor, const Op& op, Ranks ranks, const char* name) {
  check_tensor(tensor, name);
  const auto how = find_reduction(op, tensor.scalar_type());
  auto buffer = readable(tensor);
  if (kind_of(op) == kPremulSum) {
    premultiply(buffer, op); // in place: the result replaces the tensor anyway
  }
  if (!how) {
    auto gathered = at::empty({ranks.size, buffer.numel()}, buffer.options());
    auto step = gather_all_step(gathered.unbind(0), buffer.view(-1), ranks, name);
    step.finish = [tensor, gathered, op] { tensor.detach().copy_(reduce_locally(gathered, op).view_as(tensor)); };
    return step;
  }
  return {
      [buffer, how](const ccl::communicator& comm, Events& events) {
        const auto over_network = [how](char* data, size_t count, const ccl::communicator& some) {
          return reduce_all(data, count, *how, some);
        };
        const auto rest = shared_reduce_all(events, buffer, *how, over_network);
        if (rest > 0) {
          auto* const end = static_cast<char*>(buffer.data_ptr()) + buffer.nbytes();
          events.push_back(over_network(end - rest * (buffer.nbytes() / count_of(buffer, *how)), rest, comm));
        }
      },
      finish_later(tensor, buffer, op, ranks.size)};
}

Step reduce_step(const at::Tensor& tensor, const Op& op, int root, Ranks ranks, const char* name) {
  check_tensor(tensor, name);
  const auto how = find_reduction(op, tensor.scalar_type());
  const bool is_root = ranks.rank == root;
  if (!how || custom_function(how->datatype, how->operation) != nullptr) {
    auto result = is_root ? tensor : at::empty_like(tensor);
    const c10::InferenceMode guard;
    result.detach().copy_(tensor);
    return reduce_all_step(result, op, ranks, name);
  }
  auto buffer = premultiplied(readable(tensor), op);
  // oneCCL writes to the memory of the result on every rank.
  auto result = at::empty_like(buffer);
  return {
      [buffer, result, how, root](const ccl::communicator& comm, Events& events) {
        if (buffer.numel() > 0) {
          events.push_back(ccl::reduce(
              buffer.data_ptr(), result.data_ptr(), count_of(buffer, *how), how->datatype, how->operation, root, comm));
        }
      },
      is_root ? finish_later(tensor, result, op, ranks.size) : nullptr};
}

Step gather_all_step(const Tensors& outputs, const at::Tensor& input, Ranks ranks, const char* name) {
  check_tensor(input, name);
  check_list(outputs, input, ranks, name);
  check_like(outputs[ranks.rank], input, input.numel(), name);
  auto buffer = readable(input);
  // With a list of buffers, oneCCL blocks until the operation is complete, so a timeout could not end it.
  const Block to(writable_all(outputs));
  const auto is_shared = std::make_shared<bool>(false);
  return {
      [buffer, to, is_shared](const ccl::communicator& comm, Events& events) {
        *is_shared = shared_gather(events, to.parts, buffer);
        if (*is_shared) {
          return;
        }
        const auto counts = Bytes(to.parts).counts;
        if (std::any_of(counts.begin(), counts.end(), [](size_t count) { return count > 0; })) {
          events.push_back(ccl::allgatherv(buffer.data_ptr(), buffer.nbytes(), to.data(), counts, kByteType, comm));
        }
      },
      [outputs, to, is_shared] {
        if (!*is_shared) {
          to.scatter();
        }
        write_back_all(outputs, to.parts);
      }};
}

Step gather_into_step(const at::Tensor& output, const at::Tensor& input, Ranks ranks, const char* name) {
  check_tensor(input, name);
  check_like(output, input, input.numel() * ranks.size, name);
  auto buffer = readable(input);
  auto result = writable(output);
  return {
      [buffer, result, ranks](const ccl::communicator& comm, Events& events) {
        if (buffer.nbytes() > 0 && !shared_gather(events, split(result, ranks.size), buffer)) {
          events.push_back(ccl::allgather(buffer.data_ptr(), result.data_ptr(), buffer.nbytes(), kByteType, comm));
        }
      },
      write_back_later(output, result)};
}

Step reduce_scatter_step(
    const at::Tensor& output, const Tensors& inputs, const Op& op, Ranks ranks, const char* name) {
  check_tensor(output, name);
  check_list(inputs, output, ranks, name);
  check_like(inputs[ranks.rank], output, output.numel(), name);
  const bool is_even = std::all_of(
      inputs.begin(), inputs.end(), [&](const at::Tensor& input) { return input.numel() == output.numel(); });
  if (is_even) {
    Tensors flat;
    for (const auto& input : inputs) {
      flat.push_back(input.detach().reshape(-1));
    }
    return reduce_scatter_from_step(output, at::cat(flat), op, ranks, name);
  }
  // Inputs of different sizes: one reduction per rank, with that rank as the root.
  std::vector<Step> steps;
  for (int root = 0; root < ranks.size; ++root) {
    auto part = root == ranks.rank ? output : at::empty_like(inputs[root]);
    part.detach().copy_(inputs[root].detach().reshape(part.sizes()));
    steps.push_back(reduce_step(part, op, root, ranks, name));
  }
  return {
      [steps](const ccl::communicator& comm, Events& events) {
        for (const auto& step : steps) {
          step.start(comm, events);
        }
      },
      [steps] {
        for (const auto& step : steps) {
          if (step.finish) {
            step.finish();
          }
        }
      }};
}

Step reduce_scatter_from_step(
    const at::Tensor& output, const at::Tensor& input, const Op& op, Ranks ranks, const char* name) {
  check_tensor(output, name);
  check_like(input, output, output.numel() * ranks.size, name);
  const auto how = find_reduction(op, output.scalar_type());
  auto buffer = premultiplied(readable(input), op);
  auto result = writable(output);
  const auto gather = std::make_shared<Step>(); // empty unless the ranks gather
  return {
      [buffer, result, op, how, gather, ranks, name](const ccl::communicator& comm, Events& events) {
        if (result.numel() == 0 ||
            (how && shared_reduce_scatter(events, result, split(buffer, ranks.size), *how))) {
          return;
        }
        const bool is_custom = !how || custom_function(how->datatype, how->operation) != nullptr;
        if (!is_custom || (how && events.oneccl_rounds && !is_extreme(*how))) {
          events.push_back(ccl::reduce_scatter(
              buffer.data_ptr(), result.data_ptr(), count_of(result, *how), how->datatype, how->operation, comm));
          return;
        }
        *gather = gather_to_reduce_step(result, buffer, op, ranks, name);
        gather->start(comm, events);
      },
      [finish = finish_later(output, result, op, ranks.size), gather] {
        if (gather->finish) {
          gather->finish();
        }
        if (finish) {
          finish();
        }
      }};
}

Step exchange_step(const Tensors& outputs, const Tensors& inputs, Ranks ranks, const char* name) {
  CCL_CHECK(!inputs.empty() && !outputs.empty(), name, ": expected a tensor for each rank, found none");
  check_tensor(inputs.front(), name);
  check_list(inputs, inputs.front(), ranks, name);
  check_list(outputs, inputs.front(), ranks, name);
  check_like(outputs[ranks.rank], inputs[ranks.rank], inputs[ranks.rank].numel(), name);
  const Block from(readable_all(inputs));
  const Block to(writable_all(outputs));
  from.gather();
  return {
      [from, to](const ccl::communicator& comm, Events& events) {
        events.push_back(ccl::alltoallv(
            from.data(), Bytes(from.parts).counts, to.data(), Bytes(to.parts).counts, kByteType, comm));
      },
      [outputs, to] {
        to.scatter();
        write_back_all(outputs, to.parts);
      }};
}

} // namespace ccl_backend
