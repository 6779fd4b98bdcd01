// One process group: its communicators, its state, and what all its operations share.
#pragma once

#include "call_log.hpp"
#include "group_options.hpp"
#include "lifeline.hpp"
#include "mailbox.hpp"
#include "paths.hpp"
#include "peer_reports.hpp"

#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace ccl_backend {

class OrderedCallbacks;

// Lanes: calls of the user's threads use lane 0. Collectives that a future's callback calls use lane 1, which has its
// own communicator; collectives that callbacks of those futures call use lane 2, and so on; those that are nested
// deeper than there are lanes share the last one. Callbacks run beside the user's threads, so the two sets of calls have
// no common order that is the same on all ranks. torch runs the callback of a future that is complete already in the
// thread that attaches it, which differs between ranks: the lane belongs to the callback, not to the thread.
class Group : public std::enable_shared_from_this<Group> {
 public:
  // Every rank of the group has to create it. Raises DistBackendError at the timeout, with the ranks that are missing
  // or with oneCCL's own message.
  explicit Group(GroupOptions options);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // As `close`.
  ~Group();

  // Leaves the group; later calls on it raise. Never waits for a peer.
  void close() noexcept;

  // With the engine locked. Raise DistBackendError if the group was closed.
  const ccl::communicator& communicator(int lane);
  const Paths& paths(int lane) const {
    return lanes_[lane].paths;
  }
  Mailbox& mailbox();

  // The lane of the calling thread. The first call in a lane creates its communicator, with all ranks.
  int open_lane();
  // The number of the lane's next collective, from 1.
  uint64_t next_sequence(int lane) {
    return ++lanes_[lane].sequence;
  }
  // For the other ranks: this rank starts the collective. One thread at a time.
  void announce(const Started& call, const Sizes& sizes);
  // The process ends before this collective is complete.
  void withdraw(int lane, uint64_t sequence) noexcept;
  uint64_t sequence() const {
    return lanes_[0].sequence;
  }
  const std::shared_ptr<OrderedCallbacks>& callbacks(int lane) const {
    return lanes_[lane].callbacks;
  }

  Milliseconds timeout() const {
    return Milliseconds(timeout_);
  }
  void set_timeout(Milliseconds timeout) {
    timeout_ = timeout.count();
  }

  // Later calls raise with this reason. The first reason stays.
  void mark_broken(const std::string& reason);
  bool is_broken() const {
    return broken_.load(std::memory_order_acquire);
  }
  // Whether this group is broken, or a peer failed or was lost.
  bool has_error() const;
  std::string reason() const;
  // Raise DistBackendError if the group is broken or closed, or in a forked child.
  void require_usable(const char* operation) const;
  void require_own_process(const char* operation) const;

  // Why a call that started at `started` can never complete: a rank that it needs is gone, and what this rank sent
  // before has had time to arrive. Empty if it may complete.
  std::string why_never(Clock::time_point started, const Needs& needs) const;

  // Logs a call. Returns the number to pass to `ended`.
  uint64_t started(const Started& what);
  void ended(uint64_t number, bool is_success) {
    calls_->ended(number, is_success);
  }
  // Prints the last calls to standard error, once per group.
  void print_calls(const std::string& reason);

  // Reports through the lifeline that this rank has given the group up. Never blocks.
  void report_failure() noexcept;
  // "the ranks call different collectives: rank 0 called ..., rank 1 called ...", or empty if the calls are equal. For
  // use after a failure: waits up to kCallsOnTheirWay for calls that the other ranks have sent.
  std::string find_difference() noexcept;
  // Through the store: see PeerReports.
  void publish_last_call() noexcept;
  PeerReports::Calls compare_with_peers(Clock::time_point limit = Clock::time_point::max()) noexcept;
  std::string find_reported_failure() noexcept;

  // See store_barriers.hpp.
  void monitored_barrier(Milliseconds limit, bool wait_for_all);

  const GroupOptions options;
  const pid_t process;

 private:
  struct Lane {
    std::mutex opening;
    Paths paths; // under the engine's lock
    std::atomic<uint64_t> sequence{0};
    std::shared_ptr<OrderedCallbacks> callbacks;
  };

  // Raises DistBackendError if a collective that started at `started` can never complete.
  void require_peers(Clock::time_point started) const;
  std::shared_ptr<Lifeline> lifeline() const;
  // Of a lost or failed rank.
  std::optional<Departure> failure() const;
  // As find_difference, without a wait.
  std::string difference() const;

  std::array<Lane, kLanes> lanes_;
  std::unique_ptr<Mailbox> mailbox_; // under the engine's lock
  std::atomic<int64_t> timeout_; // milliseconds
  std::atomic<bool> closed_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> printed_{false};
  std::atomic<uint64_t> barriers_{0};
  const std::shared_ptr<CallLog> calls_ = std::make_shared<CallLog>();
  const std::shared_ptr<PeerReports> reports_;
  mutable std::mutex mutex_; // protects the members below
  std::string reason_;
  std::shared_ptr<Lifeline> lifeline_; // none in a group of one rank, or after `close`
};

} // namespace ccl_backend
