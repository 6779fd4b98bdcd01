// The Python module: a function that makes a group's backend.
#include "engine.hpp"
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
  // What torch gives for a group's backend; the methods are c10d.Backend's.
  py::class_<ccl_backend::ProcessGroupCCL, c10::intrusive_ptr<ccl_backend::ProcessGroupCCL>, c10d::Backend>(
      module, "ProcessGroupCCL")
      .def_property_readonly("options", &ccl_backend::ProcessGroupCCL::getBackendOptions)
      .def("set_timeout", &ccl_backend::ProcessGroupCCL::setTimeout, py::arg("timeout"))
      .def(
          "has_error",
          [](ccl_backend::ProcessGroupCCL& self) { return self.getError() != c10d::ErrorType::SUCCESS; },
          py::call_guard<py::gil_scoped_release>(),
          "Has the group failed, was it aborted, or has it lost a rank?");
  module.def(
      "stop",
      [] { ccl_backend::Engine::instance().stop(); },
      py::call_guard<py::gil_scoped_release>(),
      "The process ends: nothing runs in the background from here on.");
  module.def(
      "create",
      torch::wrap_pybind_function_no_gil(ccl_backend::create),
      "A c10d backend for one group. A collective of its ranks.",
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("timeout"),
      py::arg("name"),
      py::arg("global_ranks"));
}
