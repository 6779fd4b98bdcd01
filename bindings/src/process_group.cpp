#include "process_group.hpp"

#include "engine.hpp"
#include "errors.hpp"
#include "patience.hpp"
#include "types.hpp"
#include "watchdog.hpp"

namespace ccl_backend {
namespace {

// How long shutdown waits for operations in flight. A program normally waits for all but unneeded messages before.
constexpr std::chrono::seconds kShutdown{5};

} // namespace

ProcessGroupCCL::ProcessGroupCCL(GroupOptions options)
    : Backend(options.rank, options.size), group_(std::make_shared<Group>(std::move(options))) {
#if TORCH_SINCE(1, 12)
  init();
#endif
}

std::shared_ptr<Group> ProcessGroupCCL::group() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return group_;
}

std::shared_ptr<Group> ProcessGroupCCL::open_group(const char* operation) const {
  auto found = group();
  if (!found) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", operation, " on a group that was shut down"));
  }
  return found;
}

std::shared_ptr<Group> ProcessGroupCCL::require_group(const char* operation) const {
  auto found = open_group(operation);
  try {
    found->require_usable(operation);
  } catch (const std::exception&) {
    if (!Engine::instance().is_forked()) {
      (void)found->find_difference();
      found->require_usable(operation);
    }
    throw;
  }
  return found;
}

WorkPtr ProcessGroupCCL::launch(Call&& call, bool is_collective) {
  const auto group = require_group(call.name);
  int lane = 0;
  try {
    lane = is_collective ? group->open_lane() : 0;
  } catch (const std::exception& error) { // the ranks are out of step from here on
    Watchdog::instance().abort(group, message_of(error));
    throw;
  }
  const auto sequence = is_collective ? group->next_sequence(lane) : ++messages_;
  const auto operation = c10::make_intrusive<Operation>(group, std::move(call), sequence, lane);
  try {
    Engine::instance().submit(operation);
  } catch (const std::exception& error) {
    // A part of the transfers may have started, so the ranks are out of step from here on.
    const auto difference = group->find_difference();
    const auto message = c10::str(
        "ccl: ", operation->what().describe(), " could not start on ", group->options.where(), ": ", message_of(error),
        difference.empty() ? "" : "; ", difference);
    Watchdog::instance().abort(group, message);
    C10_THROW_ERROR(DistBackendError, message);
  }
  return operation;
}

void ProcessGroupCCL::check_root(int64_t root, const char* name) const {
  CCL_CHECK(root >= 0 && root < size_, name, ": root rank ", root, " is not in a group of ", size_, " ranks");
}

void ProcessGroupCCL::setSequenceNumberForGroup() {} // every rank counts from zero

uint64_t ProcessGroupCCL::getSequenceNumberForGroup() {
  const auto found = group();
  return found ? found->sequence() : 0;
}

void ProcessGroupCCL::setTimeout(Milliseconds timeout) {
  open_group("set_timeout")->set_timeout(timeout);
}

c10::intrusive_ptr<Backend::Options> ProcessGroupCCL::getBackendOptions() {
  return c10::make_intrusive<Options>("ccl", open_group("options")->timeout());
}

void ProcessGroupCCL::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  const auto found = require_group("monitored_barrier");
  found->monitored_barrier(options.timeout == c10d::kUnsetTimeout ? found->timeout() : options.timeout, wait_for_all);
}

ErrorType ProcessGroupCCL::getError() {
  const auto found = group();
  return is_aborted_ || (found && found->has_error()) ? ErrorType::COMM_ERROR : ErrorType::SUCCESS;
}

bool ProcessGroupCCL::drain(const Group& group) {
  const auto limit = Clock::now() + kShutdown;
  Patience patience(0);
  while (Watchdog::instance().has(group)) {
    if (Clock::now() >= limit || Engine::instance().is_stopping()) {
      return false;
    }
    Engine::instance().poll();
    patience.pause();
  }
  return true;
}

void ProcessGroupCCL::leave(const char* reason, bool is_orderly) {
  if (Engine::instance().is_forked()) {
    return; // a thread of the parent may have held the mutex during the fork
  }
  std::shared_ptr<Group> left;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    left.swap(group_);
  }
  if (!left) {
    return;
  }
  if (!is_orderly || left->is_broken() || !drain(*left)) {
    is_aborted_ = true;
    Watchdog::instance().abort(left, c10::str("ccl: ", reason, ", ", left->options.where()));
  }
  left->close();
}

void ProcessGroupCCL::shutdown() {
  leave("the group was shut down with operations in flight", true);
}

void ProcessGroupCCL::abort() {
  leave("the group was aborted", false);
}

} // namespace ccl_backend
