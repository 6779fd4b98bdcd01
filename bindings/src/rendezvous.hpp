// oneCCL's key-value exchange on the c10d store that the ranks share already.
#pragma once

#include "group.hpp"

namespace ccl_backend {

// oneCCL's own server would listen on one more port, on an interface that has to be chosen, and waits on its own
// terms. The store is reachable by definition, and each wait here ends at the deadline.
class StoreExchange final : public ccl::kvs_interface {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, Clock::time_point deadline);

  // Waits for the key. Raises DistBackendError at the deadline.
  ccl::vector_class<char> get(const ccl::string_class& key) override;
  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override;
  int get_id() override;

  // Nobody waits for the communicator any more: `get` raises soon.
  void abandon() {
    abandoned_ = true;
  }

  // oneCCL erases its keys when the communicator goes, when the store may be gone already: from now on do nothing.
  void close();

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const Clock::time_point deadline_;
  const int id_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> abandoned_{false};
};

} // namespace ccl_backend
