#include "operation.hpp"

#include "engine.hpp"
#include "types.hpp"

#include <c10/util/Exception.h>

#include <map>
#include <sstream>

namespace ccl_backend {
namespace {

int64_t count_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// "ccl:all_reduce". The profiler keeps the pointer; `name` is a literal.
const char* profiler_title(const char* name) {
  static auto* const titles = new std::map<const char*, std::string>();
  static auto* const mutex = new std::mutex();
  std::lock_guard<std::mutex> guard(*mutex);
  auto& title = (*titles)[name];
  if (title.empty()) {
    title = std::string("ccl:") + name;
  }
  return title.c_str();
}

Started summarize(const Call& call, uint64_t sequence) {
  Started what{sequence, call.name};
  const auto& tensors = call.inputs.empty() ? call.outputs : call.inputs;
  if (!tensors.empty()) {
    what.elements = 0;
    what.type = tensors.front().scalar_type();
    for (const auto& tensor : tensors) {
      what.elements += tensor.numel();
    }
  }
  return what;
}

std::string seconds(Clock::duration duration) {
  std::ostringstream text;
  text.precision(3);
  text << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

} // namespace

Operation::Operation(std::shared_ptr<Group> group, Call call, uint64_t sequence)
    : c10d::Work(
          group->options.rank,
          call.type,
          profiler_title(call.name),
          std::make_optional(call.inputs.empty() ? call.outputs : call.inputs)),
      group_(std::move(group)),
      call_(std::move(call)),
      what_(summarize(call_, sequence)),
      started_(Clock::now()),
      timeout_(call_.timeout.count() > 0 ? call_.timeout : group_->options.timeout),
      bytes_(count_bytes(call_.inputs) + count_bytes(call_.outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void Operation::start() {
  for (const auto& step : call_.steps) {
    step.start(group_->communicator(), events_);
  }
}

bool Operation::advance() {
  while (done_events_ < events_.size()) {
    if (!events_[done_events_].test()) {
      return false;
    }
    ++done_events_;
  }
  return !call_.advance || call_.advance();
}

void Operation::complete() {
  try {
    at::NoGradGuard no_grad;
    for (const auto& step : call_.steps) {
      if (step.finish) {
        step.finish();
      }
    }
  } catch (...) {
    return fail(std::current_exception());
  }
  events_.clear();
  call_.steps.clear();
  call_.advance = nullptr;
  // Before the future: a callback may ask this operation whether it is complete.
  finish();
  finished_.store(true, std::memory_order_release);
  future_->markCompleted(c10::IValue(call_.outputs));
}

void Operation::fail(std::exception_ptr error) {
  finish(error);
  finished_.store(true, std::memory_order_release);
  future_->setErrorIfNeeded(error);
}

bool Operation::isCompleted() {
  if (!finished_.load(std::memory_order_acquire)) {
    Engine::instance().poll();
  }
  return finished_.load(std::memory_order_acquire);
}

bool Operation::isSuccess() const {
  return finished_.load(std::memory_order_acquire) && !exception();
}

int Operation::sourceRank() const {
  CCL_CHECK(call_.source, "sourceRank is of a recv only, this is ", call_.name);
  return *call_.source;
}

std::vector<at::Tensor> Operation::result() {
  TORCH_CHECK(isCompleted(), "ccl: work needs to be completed before its result is read");
  return call_.outputs;
}

bool Operation::wait(Milliseconds timeout) {
  std::optional<Clock::time_point> limit;
  if (timeout.count() > 0) {
    limit = Clock::now() + timeout;
  }
  Engine::instance().wait(*this, limit);
  if (!finished_.load(std::memory_order_acquire)) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", what_.describe(), " did not complete within the ", seconds(timeout), " of this wait; ",
                 group_->where()));
  }
  if (const auto error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

void Operation::synchronize() {
  wait();
}

void Operation::abort() {
  group_->mark_broken(c10::str(what_.describe(), " was aborted"));
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  return future_;
}

uint64_t Operation::getSequencenumber() const {
  return what_.sequence;
}

std::string Operation::why_never(Clock::time_point now) const {
  if (now >= started_ + timeout_) {
    return c10::str("did not complete within its timeout of ", seconds(timeout_));
  }
  const bool is_message = call_.advance != nullptr;
  const auto reason = group_->why_never(started_, is_message);
  return reason.empty() ? reason : c10::str("cannot complete: ", reason);
}

} // namespace ccl_backend
