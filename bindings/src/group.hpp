// One process group's communicators and what all its operations share.
#pragma once

#include "call_log.hpp"
#include "lifeline.hpp"
#include "mailbox.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace ccl_backend {

class OrderedCallbacks;

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store; // private to the group, which may be made more than once
  int rank;
  int size;
  Milliseconds timeout;
  std::string name;
  std::vector<int64_t> global_ranks; // empty: all ranks of the job
};

// Lanes: what the user's threads call goes through lane 0. Collectives that a future's callback calls go through lane
// 1, with a communicator of its own, those of callbacks of such futures through lane 2, and so on. So they need not
// start in one order with the calls of the user's threads, which callbacks run beside.
class Group : public std::enable_shared_from_this<Group> {
 public:
  // A collective of all `size` ranks, bounded by the timeout. Raises DistBackendError that names the ranks that did
  // not come, or what oneCCL said.
  explicit Group(GroupOptions options);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // As `close`.
  ~Group();

  // Leaves the group; later calls on it raise. Never blocks for a peer.
  void close() noexcept;

  // With the engine locked. Raise DistBackendError where the group was closed.
  const ccl::communicator& communicator(int lane);
  Mailbox& mailbox();

  // The lane of calls in this thread. The first call of a lane makes its communicator, with all ranks.
  int open_lane();
  // Is a lane being made, in any group of the process?
  static bool is_opening_lane();
  // The number of the next collective of the lane; the first one is 1.
  uint64_t next_sequence(int lane);
  uint64_t sequence() const {
    return lanes_[0].sequence;
  }
  OrderedCallbacks& callbacks(int lane) {
    return *lanes_[lane].callbacks;
  }

  Milliseconds timeout() const {
    return Milliseconds(timeout_);
  }
  void set_timeout(Milliseconds timeout) {
    timeout_ = timeout.count();
  }

  // "group 0, rank 1 of 2"
  std::string where() const;

  // Later calls fail at once with this reason, unless there is one already.
  void mark_broken(const std::string& reason);
  bool is_broken() const {
    return broken_.load(std::memory_order_acquire);
  }
  // It is broken, or a peer has given it up or is gone.
  bool has_error() const;
  std::string reason() const;
  // Raise DistBackendError if the group is broken or closed, or in a forked child.
  void require_usable(const char* operation) const;
  void require_own_process(const char* operation) const;

  // Why an operation that started then can never complete: a rank is gone, and what it had sent before has had time
  // to arrive. Empty: it may complete. `sequence`: of a collective of lane 0.
  std::string why_never(Clock::time_point started, std::optional<uint64_t> sequence) const;

  // The number to give to `ended`.
  uint64_t started(const Started& what);
  void ended(uint64_t number, bool is_success) {
    calls_.ended(number, is_success);
  }
  // The last calls, to standard error, once in a group's life.
  void print_calls(const std::string& reason);

  // Tells the other ranks at once that this one has given the group up. Never blocks.
  void tell_failure() noexcept;
  // Tells all ranks through the store what this one started last, reads what the others did and gives it in one line.
  // Takes a few seconds at most, whatever the store does. Never raises.
  std::string compare_with_peers() noexcept;
  // The first part of that. May block as long as the store does. Never raises.
  void publish_quietly() noexcept;
  // Asks the store whether a peer has given up: then why, else empty. May block as long as the store does. Never
  // raises.
  std::string ask_peers() noexcept;

  // Rank 0 waits for all others, the others for rank 0. Raises DistBackendError that names the ranks that did not
  // come; with `wait_for_all` all of them, else the first.
  void monitored_barrier(Milliseconds limit, bool wait_for_all);

  const GroupOptions options;
  const pid_t process;

 private:
  struct Lane {
    std::mutex opening;
    std::unique_ptr<ccl::communicator> communicator; // under the engine's lock
    std::atomic<uint64_t> sequence{0};
    std::shared_ptr<OrderedCallbacks> callbacks;
  };

  // All ranks meet in the store. `look` is called all the time, and may raise.
  void join(c10d::Store& store, Clock::time_point deadline, const std::function<void()>& look = nullptr);
  std::unique_ptr<ccl::communicator> connect(const c10::intrusive_ptr<c10d::Store>& store, Clock::time_point deadline);
  void publish(c10d::Store& store);
  std::string read_peers(c10d::Store& store, std::chrono::seconds limit);
  c10::intrusive_ptr<c10d::Store> private_store();
  int64_t global_rank(int rank) const;
  std::shared_ptr<Lifeline> lifeline() const;
  std::optional<Departure> departure() const;

  std::array<Lane, 4> lanes_;
  std::unique_ptr<Mailbox> mailbox_; // under the engine's lock
  std::atomic<int64_t> timeout_; // milliseconds
  std::atomic<bool> closed_{false};
  std::atomic<bool> broken_{false};
  std::atomic<bool> printed_{false};
  std::atomic<uint64_t> barriers_{0};
  CallLog calls_;
  mutable std::mutex mutex_; // of the members below
  std::string reason_;
  std::shared_ptr<Lifeline> lifeline_; // none where the rank is alone, and once the group is closed
  std::mutex store_mutex_; // of the member below
  c10::intrusive_ptr<c10d::Store> private_store_;
};

} // namespace ccl_backend
