// The Python module: a function that makes a group's backend.
#include "process_group.hpp"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace ccl_backend {
namespace {

c10::intrusive_ptr<c10d::Backend> create(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    const std::string& name,
    const std::vector<int64_t>& global_ranks) {
  return c10::make_intrusive<ProcessGroupCCL>(GroupOptions{store, rank, size, timeout, name, global_ranks});
}

} // namespace
} // namespace ccl_backend

PYBIND11_MODULE(_backend, module) {
  module.doc() = "torch.distributed on oneCCL; use it through the package.";
  module.def(
      "create",
      torch::wrap_pybind_function_no_gil(ccl_backend::create),
      "A c10d backend for one group. A collective of its ranks.",
      pybind11::arg("store"),
      pybind11::arg("rank"),
      pybind11::arg("size"),
      pybind11::arg("timeout"),
      pybind11::arg("name"),
      pybind11::arg("global_ranks"));
}
