// One process group's communicator and what all its operations share.
#pragma once

#include "lifeline.hpp"
#include "mailbox.hpp"

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

namespace ccl_backend {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What a rank tells others about an operation.
struct Started {
  uint64_t sequence = 0; // zero: none yet
  const char* name = "";
  int64_t elements = -1; // negative: no tensor
  at::ScalarType type = at::kByte;

  // "#12 all_reduce(float32, 100)"
  std::string describe() const;
};

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store; // private to the group
  int rank;
  int size;
  Milliseconds timeout;
  std::string name;
  std::vector<int64_t> global_ranks; // empty: all ranks of the job
};

class Group {
 public:
  // A collective of all `size` ranks, bounded by the timeout. Raises DistBackendError that names the ranks that did
  // not come, or what oneCCL said.
  explicit Group(GroupOptions options);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Never blocks for a peer: the communicator of a broken group is left to the end of the process.
  ~Group();

  const ccl::communicator& communicator() const {
    return *communicator_;
  }

  Mailbox& mailbox() {
    return *mailbox_;
  }

  // "group 0, rank 1 of 2"
  std::string where() const;

  // Later calls fail at once with this reason. False if there is one already; that one stays.
  bool mark_broken(const std::string& reason);
  bool is_broken() const {
    return broken_.load(std::memory_order_acquire);
  }
  std::string reason() const;
  // Raises DistBackendError if the group is broken.
  void require_usable(const char* operation) const;

  // Why an operation that started then can never complete: a rank is gone, and what it had sent before has had time
  // to arrive. Empty: it may complete.
  std::string why_never(Clock::time_point started, bool is_message) const;

  // Remembers what this rank started last, for the ranks that wait for it.
  void started(const Started& what);

  // Tells all ranks that this one gives up, publishes what it started last, reads what the others did and says it in
  // one line. Takes a few seconds at most, whatever the store does. Never raises.
  std::string compare_with_peers(const std::shared_ptr<Group>& self) noexcept;
  // Asks the store whether a peer has given up; then publishes what this rank started last and breaks the group.
  // May block as long as the store does. Never raises.
  void ask_peers() noexcept;

  const GroupOptions options;
  const pid_t process;

 private:
  void join(Clock::time_point deadline);
  std::unique_ptr<ccl::communicator> connect(Clock::time_point deadline);
  void publish(c10d::Store& store);
  std::string read_peers(c10d::Store& store);
  c10d::Store& private_store();

  // Goes last: it tells the others that this rank has left. None where the rank is alone.
  std::unique_ptr<Lifeline> lifeline_;
  std::unique_ptr<ccl::communicator> communicator_;
  std::unique_ptr<Mailbox> mailbox_;
  std::atomic<bool> broken_{false};
  mutable std::mutex mutex_; // of the members below
  std::string reason_;
  Started last_;
  std::mutex store_mutex_; // of the member below
  c10::intrusive_ptr<c10d::Store> private_store_;
};

} // namespace ccl_backend
