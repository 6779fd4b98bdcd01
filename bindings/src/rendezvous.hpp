// oneCCL's key-value store on the c10d store that the ranks already share.
#pragma once

#include "clock.hpp"
#include "releases.hpp"

#include <oneapi/ccl.hpp>

#include <atomic>
#include <set>
#include <string>

namespace ccl_backend {

// oneCCL's own server would need another port, a network interface to be chosen, and has timeouts of its own. All ranks
// can reach the c10d store, and each wait here ends at the deadline.
class StoreExchange final : public ccl::kvs_interface {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, Clock::time_point deadline);

  // Waits for the key. Raises DistBackendError at the deadline.
  ccl::vector_class<char> get(const ccl::string_class& key) override;
  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override;
  int get_id() override;

  // The caller has given up: `get` raises soon.
  void abandon() {
    abandoned_ = true;
  }

  // From now on do nothing. oneCCL erases its keys when a communicator is destroyed, and the store may have ended by
  // then.
  void close();

 private:
  // In its barriers, oneCCL asks for the same keys again and again until their values change. Without pauses, the ranks
  // that wait and the store take the core from the rank that they wait for.
  void pause_if_repeated(const std::string& key);
  // Raises DistBackendError at the deadline, and after `abandon`.
  void require_time() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const Clock::time_point deadline_;
  const int id_;
  // Since this rank's last `set`, or since the last pause.
  std::set<std::string> asked_;
  Milliseconds pause_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> abandoned_{false};
};

} // namespace ccl_backend
