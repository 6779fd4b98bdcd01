#include "store_barriers.hpp"

#include <thread>

namespace ccl_backend {
namespace {

constexpr const char* kAllJoined = "all-joined";

std::string joined_key(int rank) {
  return c10::str("joined/", rank);
}

void append(std::string& list, int64_t rank) {
  list += (list.empty() ? "" : ", ") + std::to_string(rank);
}

bool has_in_time(c10d::Store& store, const std::string& key, Milliseconds limit) {
  try {
    store.wait({key}, limit);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Returns when the store has the key, or when the limit is over.
void poll(c10d::Store& store, const std::string& key, const TimeLimit& limit, const std::function<void()>& check) {
  while (!limit.is_over() && !store.check({key})) {
    check();
    std::this_thread::sleep_for(Milliseconds(10));
  }
}

} // namespace

void wait_for(
    c10d::Store& store, const std::string& key, const TimeLimit& limit, const std::function<void()>& check) {
  poll(store, key, limit, check);
  store.wait({key}, limit.left());
}

void join(
    const GroupOptions& group, c10d::Store& store, const TimeLimit& limit, const std::function<void()>& check) {
  put_text(store, joined_key(group.rank), "");
  if (store.add("joined", 1) == group.size) {
    put_text(store, kAllJoined, "");
  }
  if (check) {
    poll(store, kAllJoined, limit, check);
  }
  try {
    store.wait({kAllJoined}, limit.left());
  } catch (const std::exception& error) {
    std::string missing;
    for (int rank = 0; rank < group.size; ++rank) {
      if (!store.check({joined_key(rank)})) {
        append(missing, group.global_rank(rank));
      }
    }
    if (missing.empty()) { // the store failed, not a rank
      throw;
    }
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: rank ", missing, " did not join within ", limit.seconds, " s: ", group.where()));
  }
}

void monitored_barrier(const GroupOptions& group, uint64_t number, Milliseconds timeout, bool wait_for_all) {
  const auto prefix = c10::str("barrier/", number, "/");
  const auto outcome_key = prefix + "outcome";
  auto& store = *group.store;
  const TimeLimit limit(timeout);
  const auto timed_out = [&](const std::string& ranks) {
    return c10::str(
        "ccl: monitored_barrier: rank ", ranks, " did not arrive within ", limit.seconds, " s, ", group.where());
  };
  if (group.rank != 0) {
    put_text(store, prefix + std::to_string(group.rank), "");
    // Rank 0 may itself arrive just before the limit, and then waits for as long again.
    if (!has_in_time(store, outcome_key, limit.left() + bounded(timeout))) {
      C10_THROW_ERROR(DistBackendError, timed_out(std::to_string(group.global_rank(0))));
    }
  } else if (timeout.count() == 0) { // gloo's message
    put_text(store, outcome_key, c10::str("ccl: Rank 0 timed out in monitoredBarrier after 0 ms, ", group.where()));
  } else {
    std::string missing;
    for (int rank = 1; rank < group.size && (missing.empty() || wait_for_all); ++rank) {
      if (!has_in_time(store, prefix + std::to_string(rank), limit.left())) {
        append(missing, group.global_rank(rank));
      }
    }
    put_text(store, outcome_key, missing.empty() ? "" : timed_out(missing));
  }
  const auto outcome = get_text(store, outcome_key);
  if (!outcome.empty()) {
    C10_THROW_ERROR(DistBackendError, outcome);
  }
}

} // namespace ccl_backend
