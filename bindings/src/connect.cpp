#include "connect.hpp"

#include "bounded.hpp"
#include "engine.hpp"
#include "oneccl_private.hpp"
#include "rendezvous.hpp"
#include "store_barriers.hpp"
#include "transport.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>

namespace ccl_backend {
namespace {

// A thread that creates a communicator, and may be left behind by its caller.
class Attempt {
 public:
  // With the engine locked. Raises DistBackendError if the caller has given up.
  void begin() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_abandoned_) {
      C10_THROW_ERROR(DistBackendError, "the ranks did not finish connecting in time");
    }
    is_inside_ = true;
  }
  // oneCCL has returned. False if the caller has given up.
  bool end() {
    std::lock_guard<std::mutex> guard(mutex_);
    is_over_ = true;
    if (is_abandoned_) {
      Engine::instance().count_left_behind(-1);
    }
    return !is_abandoned_;
  }
  void abandon() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_over_ || is_abandoned_) {
      return;
    }
    is_abandoned_ = true;
    if (is_inside_) {
      Engine::instance().count_left_behind(1);
    }
  }

 private:
  std::mutex mutex_;
  bool is_inside_ = false;
  bool is_over_ = false;
  bool is_abandoned_ = false;
};

// oneCCL waits for the other ranks with the engine locked. If two groups were connected at the same time, by callbacks
// that open a lane for example, one rank could wait for the first group and the other rank for the second. A process
// therefore connects one group at a time, and the ranks of a group begin when all of them have their turn.
class Turn {
 public:
  Turn(
      const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& parent, const TimeLimit& limit,
      const std::function<void()>& check)
      : lock_(mutex(), std::try_to_lock) {
    const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>("turn", parent);
    if (!lock_) {
      put_text(*store, "taken", "");
    }
    join(group, *store, limit, check);
    if (!store->check({"taken"})) {
      return;
    }
    // In the order of the job's ranks: a rank that has its turn waits only for higher ranks, so there is no cycle.
    if (lock_) {
      lock_.unlock();
    }
    for (const int rank : in_order(group)) {
      if (rank != group.rank) {
        wait_for(*store, std::to_string(rank), limit, check);
        continue;
      }
      while (!lock_.try_lock()) {
        check();
        if (limit.is_over()) {
          C10_THROW_ERROR(DistBackendError, "another group of this process is still connecting: create groups in the same order on all ranks, or raise the timeout");
        }
        std::this_thread::sleep_for(Milliseconds(10));
      }
      put_text(*store, std::to_string(rank), "");
    }
  }

 private:
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex();
    return *mutex;
  }
  static std::vector<int> in_order(const GroupOptions& group) {
    std::vector<int> ranks(group.size);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::sort(ranks.begin(), ranks.end(), [&](int one, int other) {
      return group.global_rank(one) < group.global_rank(other);
    });
    return ranks;
  }

  std::unique_lock<std::mutex> lock_;
};

using Communicator = std::shared_ptr<ccl::communicator>;

Communicator create(
    int size, int rank, const std::vector<int64_t>& reached, const std::shared_ptr<StoreExchange>& exchange,
    Attempt& attempt) {
  const auto guard = Engine::instance().lock();
  attempt.begin();
  Communicator created;
  try {
    initialize_library();
    const RaiseTransferErrors raise; // oneCCL waits in a loop for what cannot arrive any more
    created = std::make_shared<ccl::communicator>(ccl::create_communicator(size, rank, exchange));
    communicator_made(reached);
  } catch (...) {
    (void)attempt.end();
    throw;
  }
  exchange->close();
  if (!attempt.end()) { // too late: nobody uses this communicator
    Remains remains;
    remains.communicators.push_back(std::make_unique<ccl::communicator>(std::move(*created)));
    retire(std::move(remains), false);
    C10_THROW_ERROR(DistBackendError, "the ranks finished connecting too late");
  }
  return created;
}

} // namespace

std::unique_ptr<ccl::communicator> connect(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
    const std::function<void()>& check) {
  const Turn turn(group, store, limit, check);
  const auto exchange = std::make_shared<StoreExchange>(store, limit.deadline);
  const auto attempt = std::make_shared<Attempt>();
  try {
    // The last step in oneCCL waits for the peers without a limit.
    const auto created = run_bounded<Communicator>(
        [=, size = group.size, rank = group.rank, ranks = group.reached()] {
          return create(size, rank, ranks, exchange, *attempt);
        },
        limit, check);
    if (!created) {
      C10_THROW_ERROR(DistBackendError, c10::str("no answer within ", limit.seconds, " s"));
    }
    return std::make_unique<ccl::communicator>(std::move(**created));
  } catch (...) {
    exchange->abandon();
    attempt->abandon();
    throw;
  }
}

} // namespace ccl_backend
