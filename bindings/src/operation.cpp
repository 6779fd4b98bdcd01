#include "operation.hpp"

#include "engine.hpp"
#include "patience.hpp"
#include "types.hpp"
#include "watchdog.hpp"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
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

Started summarize(const Call& call, const GroupOptions& group, uint64_t sequence, int lane) {
  Started what{sequence, call.name, lane};
  what.op = call.op;
  what.root = call.root < 0 ? -1 : static_cast<int>(group.global_rank(call.root));
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

Sizes sizes_of(const Call& call, const GroupOptions& group) {
  Sizes sizes;
  if (call.exchange) {
    const int next = (group.rank + 1) % group.size;
    const int previous = (group.rank + group.size - 1) % group.size;
    const auto& [sent, received] = *call.exchange;
    return {0, true, sent[next], sent[previous], received[next], received[previous]};
  }
  for (const auto& tensor : call.agrees_on_outputs ? call.outputs : call.inputs) {
    const auto type = static_cast<size_t>(tensor.scalar_type());
    sizes.equal = c10::hash_combine(c10::hash_combine(sizes.equal, type), static_cast<size_t>(tensor.numel()));
  }
  return sizes;
}

// Whether SharedExchange does all of it, and compares the calls itself. oneCCL does sums of bool, and those of
// reduce_scatter if the ranks' parts differ in size.
bool is_summed_within_node(const Call& call) {
  const bool is_sum = call.op == static_cast<uint8_t>(OpKind::SUM) || call.op == static_cast<uint8_t>(kAverage);
  const auto is_bool = [](const auto& tensor) { return tensor.scalar_type() == at::kBool; };
  return is_sum && call.root < 0 && call.type != c10d::OpType::REDUCE_SCATTER &&
      std::none_of(call.inputs.begin(), call.inputs.end(), is_bool);
}

std::string seconds(Clock::duration duration) {
  std::ostringstream text;
  text.precision(3);
  text << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

} // namespace

Operation::Operation(std::shared_ptr<Group> group, Call call, uint64_t sequence, int lane)
    : Work(
          group->options.rank,
          call.type,
          profiler_title(call.name),
          call.inputs.empty() ? call.outputs : call.inputs),
      group_(std::move(group)),
      call_(std::move(call)),
      is_message_(call_.advance != nullptr),
      what_(summarize(call_, group_->options, sequence, lane)),
      lane_(lane),
      started_(Clock::now()),
      timeout_(bounded(call_.timeout.count() > 0 ? call_.timeout : group_->timeout())),
      bytes_(count_bytes(call_.inputs) + count_bytes(call_.outputs)),
      log_number_(group_->started(what_)) {}

void Operation::start() {
  const auto& paths = group_->paths(lane_);
  events_.shared = paths.shared.get();
  events_.hierarchy = paths.hierarchy.get();
  events_.oneccl_rounds = paths.oneccl_rounds;
  if (events_.shared != nullptr && !is_message_ && !is_summed_within_node(call_)) {
    const auto exchange = call_.exchange.value_or(Exchange{});
    const auto arguments = hash_arguments(what_, sizes_of(call_, group_->options));
    events_.shared->announce(what_.sequence, arguments, exchange.sent, exchange.received);
  }
  for (const auto& step : call_.steps) {
    step.start(group_->communicator(lane_), events_);
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

bool Operation::is_in_oneccl() const {
  const auto is_oneccl = [](const Transfer& transfer) { return transfer.is_oneccl(); };
  return is_message_ ||
      std::any_of(events_.begin() + static_cast<std::ptrdiff_t>(done_events_), events_.end(), is_oneccl);
}

bool Operation::is_light() const {
  {
    std::lock_guard<std::mutex> guard(future_mutex_);
    if (future_) {
      return false;
    }
  }
  return std::none_of(call_.steps.begin(), call_.steps.end(), [](const Step& step) { return bool(step.finish); });
}

void Operation::complete() {
  try {
    const c10::InferenceMode guard; // writes to any tensor, also to one of torch.inference_mode()
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
  end(nullptr);
}

void Operation::fail(const std::exception_ptr& error) {
  end(error);
}

void Operation::end(const std::exception_ptr& error) {
  group_->ended(log_number_, error == nullptr);
  std::lock_guard<std::mutex> guard(future_mutex_);
  try {
    finish(error);
  } catch (const std::exception&) { // of the profiler's callback, after the work has ended
  }
  finished_.store(true, std::memory_order_release);
  if (future_) {
    complete_future_in_order();
  }
}

void Operation::complete_future_in_order() {
  auto task = [self = OperationPtr::unsafe_reclaim_from_nonowning(this)] { self->complete_future(); };
  if (is_message_) {
    Completions::instance().post([task = std::move(task)] { Completions::run_at_depth(1, task); });
  } else {
    group_->callbacks(lane_)->ready(what_.sequence, std::move(task));
  }
}

void Operation::complete_future() {
  if (const auto error = exception()) {
    future_->setErrorIfNeeded(error);
  } else {
    future_->markCompleted(c10::IValue(call_.outputs));
  }
}

bool Operation::isCompleted() {
  if (!finished_.load(std::memory_order_acquire) && !Engine::instance().is_forked()) {
    Engine::instance().poll();
  }
  return finished_.load(std::memory_order_acquire);
}

bool Operation::isSuccess() const {
  return finished_.load(std::memory_order_acquire) && !exception();
}

int Operation::sourceRank() const {
  CCL_CHECK(call_.source, "sourceRank is defined for a recv only, found ", call_.name);
  return *call_.source;
}

std::vector<at::Tensor> Operation::result() {
  TORCH_CHECK(isCompleted(), "ccl: the work is not complete: call wait() before result()");
  return call_.outputs;
}

bool Operation::wait(Milliseconds timeout) {
  std::optional<Clock::time_point> limit;
  if (timeout.count() > 0) {
    limit = Clock::now() + bounded(timeout);
  }
  const auto raise_timeout = [&] {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", what_.describe(), " did not complete within the ", seconds(timeout), " timeout of wait(), ",
                 group_->options.where()));
  };
  Engine::instance().wait(*this, limit);
  if (!finished_.load(std::memory_order_acquire)) {
    group_->require_own_process("a wait");
    raise_timeout();
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> guard(future_mutex_);
    future = future_;
  }
  if (future && !Engine::instance().is_forked()) {
    if (const auto own = place()) {
      own->lane->give_way(own->sequence, limit);
    }
    // The future may have to wait for the callbacks of earlier calls.
    Patience patience(bytes_);
    while (limit && !future->completed()) {
      if (Clock::now() >= *limit) {
        raise_timeout();
      }
      patience.pause();
    }
    future->wait();
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
  group_->require_own_process("an abort");
  Watchdog::instance().abort(group_, c10::str(what_.describe(), " was aborted"));
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  std::lock_guard<std::mutex> guard(future_mutex_);
  if (future_) {
    return future_;
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const bool has_finished = finished_.load(std::memory_order_acquire);
  if (has_finished && (is_message_ || group_->callbacks(lane_)->is_idle())) {
    complete_future();
    return future_;
  }
  if (!is_message_) {
    group_->callbacks(lane_)->expect(what_.sequence);
  }
  if (has_finished) {
    complete_future_in_order();
  }
  return future_;
}

std::optional<Place> Operation::place() const {
  return is_message_ ? std::nullopt : std::make_optional(Place{group_->callbacks(lane_), what_.sequence});
}

uint64_t Operation::getSequencenumber() const {
  return what_.sequence;
}

std::string Operation::why_never(Clock::time_point now) const {
  const auto reason = group_->why_never(started_, Needs{lane_, is_message_ ? 0 : what_.sequence, call_.peer});
  if (now >= started_ + timeout_) {
    return c10::str(
        "did not complete within its timeout of ", seconds(timeout_), reason.empty() ? "" : ": ", reason);
  }
  return reason.empty() ? reason : c10::str("cannot complete: ", reason);
}

void Operation::announce() const {
  if (!is_message_) {
    group_->announce(what_, sizes_of(call_, group_->options));
  }
}

void Operation::withdraw() const noexcept {
  if (!is_message_) {
    group_->withdraw(lane_, what_.sequence);
  }
}

} // namespace ccl_backend
