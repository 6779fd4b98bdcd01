#include "watchdog.hpp"

#include "completions.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "threads.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace ccl_backend {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};
constexpr std::chrono::milliseconds kIdleInterval{500};
// Of the queries whether a peer has given up, for operations in flight for at least as long.
constexpr std::chrono::seconds kStoreInterval{1};

// How long the groups that fail together wait for what the other ranks report.
constexpr std::chrono::seconds kCompare{3};

std::atomic<Watchdog*> created{nullptr}; // the instance, once it exists

std::exception_ptr error_with(const std::string& text) {
  return std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text));
}

} // namespace

void Watchdog::end_all(
    const std::vector<OperationPtr>& operations, const OperationPtr& first, const std::string& message,
    const std::string& peers) {
  for (const auto& operation : operations) {
    auto text = operation == first
        ? message
        : c10::str("ccl: ", operation->what().describe(), " was cancelled on ", operation->group_->options.where(),
                   ": ", operation->group_->reason());
    if (!peers.empty()) {
      text = c10::str(text, "; ", peers);
    }
    operation->fail(error_with(text));
  }
}

Watchdog& Watchdog::instance() {
  static Watchdog* const watchdog = created = new Watchdog();
  return *watchdog;
}

void Watchdog::start() {
  [[maybe_unused]] static const bool watches = start_service("ccl-watchdog", [this] { watch(); });
  [[maybe_unused]] static const bool asks = start_service("ccl-store", [this] { ask_stores(); });
}

void Watchdog::add(const OperationPtr& operation) {
  std::lock_guard<std::mutex> guard(mutex_);
  // Checked under the lock, so that a group that fails concurrently finds the operation.
  operation->group_->require_usable(operation->what().name);
  if (is_ending_) {
    C10_THROW_ERROR(DistBackendError, "ccl: the process is ending");
  }
  operation->announce();
  in_flight_.push_back(operation);
  operation->place_ = std::prev(in_flight_.end());
  operation->is_placed_ = true;
  if (!std::exchange(has_news_, true)) {
    wake_.notify_one();
  }
}

void Watchdog::remove(const OperationPtr& operation) {
  OperationPtr removed; // released without the lock
  std::lock_guard<std::mutex> guard(mutex_);
  if (operation->is_placed_) {
    operation->is_placed_ = false;
    removed = std::move(*operation->place_);
    in_flight_.erase(operation->place_);
  }
}

std::vector<OperationPtr> Watchdog::claim_all(const Group& group) {
  std::vector<OperationPtr> claimed;
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    auto& operation = *it;
    if (operation->group_.get() == &group && operation->claim()) {
      operation->is_placed_ = false;
      claimed.push_back(std::move(operation));
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
  return claimed;
}

void Watchdog::fail(const OperationPtr& operation, const std::string& reason) {
  give_up(operation->group_, operation, c10::str("ccl: ", operation->what().describe(), " ", reason));
}

void Watchdog::fail_alone(const OperationPtr& operation, const std::string& reason) {
  if (operation->claim()) {
    remove(operation);
    Completions::instance().post([operation, text = c10::str("ccl: ", operation->what().describe(), " ", reason)] {
      operation->fail(error_with(text));
    });
  }
}

void Watchdog::give_up(const std::shared_ptr<Group>& group, const OperationPtr& operation, const std::string& message) {
  group->mark_broken(message);
  group->report_failure();
  auto operations = claim_all(*group);
  if (operations.empty()) {
    return;
  }
  // Reading the peers' current calls may take some seconds.
  Completions::instance().post([group, operation, message, operations = std::move(operations)] {
    const auto peers = group->compare_with_peers().text;
    if (operation && operation->is_overdue()) {
      group->print_calls(message);
    }
    end_all(operations, operation, message, peers);
  });
}

void Watchdog::fail_suspects(
    const std::vector<OperationPtr>& suspects, const std::vector<OperationPtr>& failed_before,
    const std::string& reason) {
  if (suspects.size() == 1 && failed_before.empty()) {
    const auto& operation = suspects.front();
    return fail(operation, c10::str("failed on ", operation->group_->options.where(), ": ", reason));
  }
  struct Failed {
    std::shared_ptr<Group> group;
    std::vector<OperationPtr> suspects;
    std::vector<OperationPtr> ended; // the suspects, and the group's other operations
    PeerReports::Calls peers;
  };
  std::map<const Group*, size_t> places;
  std::vector<Failed> all;
  for (const auto& operation : suspects) {
    const auto [place, is_new] = places.emplace(operation->group_.get(), all.size());
    if (is_new) {
      all.push_back({operation->group_, {}, {}, {}});
    }
    all[place->second].suspects.push_back(operation);
  }
  // Groups whose ranks are at different calls come first, once that is known.
  const auto list = [](std::string& calls, const OperationPtr& operation) {
    calls += c10::str(
        calls.empty() ? "" : "; ", operation->what().describe(), " of group ", operation->group_->options.name);
  };
  std::string before;
  for (const auto& operation : failed_before) {
    list(before, operation);
    before += ", which failed before";
  }
  const auto text_of = [reason, before, list](const std::vector<Failed>& groups) {
    auto calls = before;
    for (const auto& failed : groups) {
      for (const auto& operation : failed.suspects) {
        list(calls, operation);
      }
      calls += failed.peers.text.empty() ? "" : c10::str(" (", failed.peers.text, ")");
    }
    return c10::str(
        reason, ". oneCCL does not tell which call this was, so all groups with transfers in flight fail. One of these "
        "is at fault: ", calls);
  };
  for (auto& failed : all) {
    failed.group->mark_broken(c10::str("ccl: ", failed.group->options.where(), " failed: ", text_of(all)));
    failed.group->report_failure();
    failed.ended = claim_all(*failed.group);
  }
  Completions::instance().post([all = std::move(all), text_of]() mutable {
    const auto limit = Clock::now() + kCompare; // for all groups together, which were reported at the same time
    for (auto& failed : all) {
      failed.peers = failed.group->compare_with_peers(limit);
    }
    std::stable_partition(all.begin(), all.end(), [](const Failed& failed) { return failed.peers.differ; });
    const auto text = text_of(all);
    for (const auto& failed : all) {
      for (const auto& operation : failed.ended) {
        operation->fail(error_with(c10::str(
            "ccl: ", operation->what().describe(), " failed on ", failed.group->options.where(), ": ", text)));
      }
    }
  });
}

void Watchdog::fail_all(const std::string& message) {
  std::set<std::shared_ptr<Group>> groups;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& operation : in_flight_) {
      groups.insert(operation->group_);
    }
  }
  for (const auto& group : groups) {
    give_up(group, OperationPtr(), message);
  }
}

void Watchdog::abort(const std::shared_ptr<Group>& group, const std::string& reason) {
  group->mark_broken(reason);
  group->report_failure();
  auto operations = claim_all(*group);
  end_all(operations, OperationPtr(), "", "");
  // For peers that compare calls.
  Completions::instance().post([group, operations = std::move(operations)] { group->publish_last_call(); });
}

bool Watchdog::has(const Group& group) {
  std::lock_guard<std::mutex> guard(mutex_);
  return std::any_of(
      in_flight_.begin(), in_flight_.end(), [&](const auto& operation) { return operation->group_.get() == &group; });
}

void Watchdog::withdraw_all() {
  auto* const watchdog = created.load();
  if (watchdog == nullptr) {
    return;
  }
  std::lock_guard<std::mutex> guard(watchdog->mutex_);
  watchdog->is_ending_ = true;
  for (const auto& operation : watchdog->in_flight_) {
    operation->withdraw();
  }
}

std::vector<std::pair<OperationPtr, std::string>> Watchdog::find_failed() {
  const auto now = Clock::now();
  std::vector<std::pair<OperationPtr, std::string>> failed;
  std::set<const Group*> groups;
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& operation : in_flight_) {
    if (groups.count(operation->group_.get()) != 0) {
      continue;
    }
    const auto reason = operation->why_never(now);
    if (!reason.empty()) {
      failed.emplace_back(operation, reason);
      groups.insert(operation->group_.get());
    }
  }
  return failed;
}

void Watchdog::watch() {
  while (!Engine::instance().is_stopping()) {
    {
      std::unique_lock<std::mutex> guard(mutex_);
      wake_.wait_for(guard, kIdleInterval, [&] { return has_news_ || !in_flight_.empty(); });
      has_news_ = false;
    }
    Lifeline::compare_calls();
    for (auto& [operation, reason] : find_failed()) {
      const auto& group = *operation->group_;
      const auto text = c10::str(reason, ", ", group.options.where());
      if (operation->is_message_ && !operation->is_overdue() && !group.has_error()) {
        fail_alone(operation, text);
      } else {
        fail(operation, text);
      }
      Completions::instance().post([operation = std::move(operation)] {});
    }
    Completions::instance().retry();
    std::this_thread::sleep_for(kPollInterval);
  }
}

void Watchdog::ask_stores() {
  while (!Engine::instance().is_stopping()) {
    std::this_thread::sleep_for(kStoreInterval);
    std::set<std::shared_ptr<Group>> groups;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      for (const auto& operation : in_flight_) {
        if (Clock::now() - operation->started_ >= kStoreInterval) {
          groups.insert(operation->group_);
        }
      }
    }
    for (const auto& group : groups) {
      const auto reason = group->find_reported_failure();
      if (!reason.empty()) {
        give_up(group, OperationPtr(), c10::str(reason, ", ", group->options.where()));
      }
    }
  }
}

} // namespace ccl_backend
