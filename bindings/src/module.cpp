// The Python module.
#include "completions.hpp"
#include "engine.hpp"
#include "process_group.hpp"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>

namespace ccl_backend {
namespace {

c10::intrusive_ptr<ProcessGroupCCL> create(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    const std::string& name,
    const std::vector<int64_t>& global_ranks,
    bool covers_job) {
  if (Engine::instance().is_forked()) { // before the store is used, whose connection may be the parent's
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: a group cannot be created in a forked child of a process that has used ccl, rank ", rank, " of ",
                 size, ": start the process with multiprocessing's method 'spawn'"));
  }
  return c10::make_intrusive<ProcessGroupCCL>(GroupOptions{store, rank, size, timeout, name, global_ranks, covers_job});
}

// A group over a store of the caller's, as Intel's bindings create it. The ranks are those of a whole job.
c10::intrusive_ptr<ProcessGroupCCL> create_over_store(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(
      0 <= rank && rank < size, "ProcessGroupCCL: rank is ", rank, ", size is ", size, ", expected 0 <= rank < size");
  static std::atomic<int> created{0};
  return create(store, rank, size, timeout, c10::str("ProcessGroupCCL-", ++created), {}, true);
}

// For pybind: converts torch's errors, and releases the GIL.
template <typename Result, typename... Arguments>
auto without_gil(Result (*function)(Arguments...)) {
  return torch::wrap_pybind_function([function](Arguments... arguments) {
    const py::gil_scoped_release released;
    return function(arguments...);
  });
}

py::object in_next_lane(py::function callback) {
  return py::cpp_function([callback = std::move(callback), depth = Completions::depth() + 1](const py::object& future) {
    const Completions::AtDepth guard(depth);
    return callback(future);
  });
}

// Called before a wait for a future of this call: see OrderedCallbacks.
void give_way(const Place& place) {
  if (!Engine::instance().is_forked()) {
    place.lane->give_way(place.sequence);
  }
}

// None unless the work is a collective of ccl.
std::optional<Place> place_of(const Work& work) {
  const auto* const operation = dynamic_cast<const Operation*>(&work);
  return operation == nullptr ? std::nullopt : operation->place();
}

} // namespace
} // namespace ccl_backend

PYBIND11_MODULE(_backend, module) {
  module.doc() = "The extension of oneccl_bindings_for_pytorch. Import the package instead.";
  // The type of a group's backend in Python. Inherits the methods of c10d.Backend.
  py::class_<ccl_backend::ProcessGroupCCL, c10::intrusive_ptr<ccl_backend::ProcessGroupCCL>, ccl_backend::Backend>(
      module, "ProcessGroupCCL")
      .def(
          py::init(ccl_backend::without_gil(ccl_backend::create_over_store)),
          "A group over a store, without torch's registration. A collective of all its ranks.",
          py::arg("store"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("timeout") = ccl_backend::kDefaultTimeout)
      .def_property_readonly(
          "options",
          [](ccl_backend::ProcessGroupCCL& self) {
            const auto options = self.getBackendOptions();
            return c10::make_intrusive<ccl_backend::PythonOptions>(options->backend, options->timeout);
          })
      .def("set_timeout", &ccl_backend::ProcessGroupCCL::setTimeout, py::arg("timeout"))
      .def(
          "has_error",
          [](ccl_backend::ProcessGroupCCL& self) { return self.getError() != ccl_backend::ErrorType::SUCCESS; },
          py::call_guard<py::gil_scoped_release>(),
          "Whether the group has failed, was aborted or has lost a rank.")
      // torch's own class has these two since 2.7.
      .def("shutdown", &ccl_backend::ProcessGroupCCL::shutdown, py::call_guard<py::gil_scoped_release>())
      .def("abort", &ccl_backend::ProcessGroupCCL::abort, py::call_guard<py::gil_scoped_release>());
  py::class_<ccl_backend::Place>(module, "Place")
      .def(
          "give_way",
          ccl_backend::give_way,
          py::call_guard<py::gil_scoped_release>(),
          "In a callback of an earlier call, run the callbacks up to this call, before a wait for it.");
  module.def("place_of", ccl_backend::place_of, "The place of a collective of ccl, or None.", py::arg("work"));
  module.def(
      "in_next_lane",
      ccl_backend::in_next_lane,
      "The callback, whose collectives use the lane after the calling thread's, in whichever thread it runs.",
      py::arg("callback"));
  module.def(
      "stop",
      ccl_backend::Engine::stop,
      py::call_guard<py::gil_scoped_release>(),
      "Stop all background work. For an exit handler.");
  module.def(
      "create",
      ccl_backend::without_gil(ccl_backend::create),
      "Create the c10d backend of a group. A collective of all ranks of the group.",
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("timeout"),
      py::arg("name"),
      py::arg("global_ranks"),
      py::arg("covers_job"));
}
