#include "process_group.hpp"

#include "engine.hpp"
#include "errors.hpp"
#include "types.hpp"

namespace ccl_backend {
namespace {

// A program that leaves a group has waited for its operations, except for messages that it did not care about.
constexpr std::chrono::seconds kShutdown{5};

} // namespace

ProcessGroupCCL::ProcessGroupCCL(GroupOptions options)
    : Backend(options.rank, options.size), group_(std::make_shared<Group>(std::move(options))) {
  init();
}

std::shared_ptr<Group> ProcessGroupCCL::require_group(const char* operation) const {
  const auto group = group_;
  if (!group) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", operation, " on a group that was shut down"));
  }
  group->require_usable(operation);
  return group;
}

WorkPtr ProcessGroupCCL::launch(Call call, bool is_collective) {
  const auto group = require_group(call.name);
  const auto sequence = is_collective ? ++sequence_ : ++messages_;
  const auto operation = c10::make_intrusive<Operation>(group, std::move(call), sequence);
  group->started(operation->what());
  try {
    Engine::instance().submit(operation);
  } catch (const std::exception& error) {
    // What oneCCL had begun is lost, so the ranks are out of step from here on.
    const auto message = c10::str(
        "ccl: ", operation->what().describe(), " could not start on ", group->where(), ": ", message_of(error));
    new OperationPtr(operation);
    group->mark_broken(message);
    C10_THROW_ERROR(DistBackendError, message);
  }
  return operation;
}

void ProcessGroupCCL::check_root(int64_t root, const char* name) const {
  CCL_CHECK(root >= 0 && root < size_, name, ": root rank ", root, " is not in a group of ", size_, " ranks");
}

void ProcessGroupCCL::setSequenceNumberForGroup() {} // every rank counts from zero

uint64_t ProcessGroupCCL::getSequenceNumberForGroup() {
  return sequence_;
}

c10d::ErrorType ProcessGroupCCL::getError() {
  return group_ && group_->is_broken() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void ProcessGroupCCL::shutdown() {
  if (const auto group = std::move(group_)) {
    if (!group->is_broken() && !Engine::instance().drain(*group, Clock::now() + kShutdown)) {
      group->mark_broken("the group was shut down with operations in flight");
    }
  }
}

void ProcessGroupCCL::abort() {
  if (const auto group = std::move(group_)) {
    group->mark_broken("the group was aborted");
  }
}

} // namespace ccl_backend
