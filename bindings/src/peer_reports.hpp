// What the ranks of a group report to each other through the store when the group fails.
#pragma once

#include "group_options.hpp"

#include <memory>
#include <mutex>
#include <string>

namespace ccl_backend {

// Any thread may call.
class PeerReports : public std::enable_shared_from_this<PeerReports> {
 public:
  struct Calls {
    std::string text; // "rank 0 is at #12 all_reduce(float32, 100); rank 1 ..."
    bool differ = false; // two ranks have started different calls with the same number
  };

  explicit PeerReports(const GroupOptions& group) : group_(group) {}

  // Reports that this rank has given the group up, and the last call that it started. May block for as long as the
  // store does.
  void publish(const std::string& last_call) noexcept;
  // For a rank that compares: the last call of this rank, which has not given the group up.
  void answer(const std::string& last_call) noexcept;
  // As `publish`, then reads the last calls of all ranks. Waits for the other ranks' reports until the limit, and for
  // the store for a second more.
  Calls compare(const std::string& last_call, Milliseconds limit) noexcept;
  // "rank 1 has given the group up" where a rank has reported so, else empty. May block for as long as the store does.
  std::string find_failure() noexcept;

  // A separate connection: a thread of the user may hold the group's connection while it waits for a key.
  c10::intrusive_ptr<c10d::Store> store();

 private:
  void write(const std::string& last_call);
  Calls read_all(Milliseconds limit);

  const GroupOptions group_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> store_; // made when it is first used
};

} // namespace ccl_backend
