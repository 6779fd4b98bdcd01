#include "rendezvous.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

namespace ccl_backend {
namespace {

// The only key for which oneCCL accepts an empty answer; it asks for every other key until it has a value.
constexpr const char* kOptionalKey = "LOCAL_KVS_ID";
// Between two looks at the store.
constexpr Milliseconds kFirstPause{1};
constexpr Milliseconds kLongestPause{20};

Milliseconds longer(Milliseconds pause) {
  return std::min(2 * pause, kLongestPause);
}

} // namespace

StoreExchange::StoreExchange(c10::intrusive_ptr<c10d::Store> store, Clock::time_point deadline)
    : store_(std::move(store)), deadline_(deadline), id_(ccl::kvs::allocate_id()), pause_(kFirstPause) {}

ccl::vector_class<char> StoreExchange::get(const ccl::string_class& name) {
  const std::string key = name.c_str();
  if (closed_) {
    return {};
  }
  pause_if_repeated(key);
  const bool is_optional = key.rfind(kOptionalKey, 0) == 0;
  if (is_optional && !store_->check({key})) {
    return {};
  }
  // The engine is locked during this loop, and a wait of the store could not be interrupted.
  for (auto pause = kFirstPause; !store_->check({key}); pause = longer(pause)) {
    require_time();
    std::this_thread::sleep_for(pause);
  }
  const auto value = store_->get(key);
  return {value.begin(), value.end()};
}

void StoreExchange::set(const ccl::string_class& name, const ccl::vector_class<char>& data) {
  if (!closed_) {
    asked_.clear();
    pause_ = kFirstPause;
    store_->set(name.c_str(), std::vector<uint8_t>(data.begin(), data.end()));
  }
}

void StoreExchange::pause_if_repeated(const std::string& key) {
  if (asked_.insert(key).second) {
    return;
  }
  require_time();
  std::this_thread::sleep_for(pause_);
  pause_ = longer(pause_);
  asked_ = {key};
}

void StoreExchange::require_time() const {
  if (abandoned_ || Clock::now() >= deadline_) {
    C10_THROW_ERROR(DistBackendError, "the ranks did not finish connecting in time");
  }
}

int StoreExchange::get_id() {
  return id_;
}

void StoreExchange::close() {
  closed_ = true;
}

} // namespace ccl_backend
