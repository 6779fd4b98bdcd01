// What differs between the releases of torch. The rows that are built with this source: docs/matrix.md.
#pragma once

#include <torch/version.h>

#define TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if TORCH_SINCE(1, 13)
#define C10D(header) <torch/csrc/distributed/c10d/header>
#else
#define C10D(header) <c10d/header>
#endif

#include C10D(HashStore.hpp)
#include C10D(PrefixStore.hpp)
#include C10D(Types.hpp)
#include C10D(Utils.hpp)
#if TORCH_SINCE(2, 0)
#include C10D(Backend.hpp)
#endif
#if !TORCH_SINCE(2, 5)
#include C10D(ProcessGroup.hpp)
#include <torch/csrc/utils/tensor_dtypes.h>
#endif
#if !TORCH_SINCE(2, 8)
#include C10D(TCPStore.hpp)
#endif

#include <mutex>

#ifndef C10_BUILD_ERROR // torch 2.1 and older
#define C10_BUILD_ERROR(type, message) ::c10::type({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message)
#endif

// `override` for functions that torch's classes have since a release. With an older torch, only C++ callers and this
// package's Python classes reach them.
#if TORCH_SINCE(2, 1)
#define OVERRIDE_SINCE_2_1 override
#else
#define OVERRIDE_SINCE_2_1
#endif
#if TORCH_SINCE(2, 2)
#define OVERRIDE_SINCE_2_2 override
#else
#define OVERRIDE_SINCE_2_2
#endif
#if TORCH_SINCE(2, 7)
#define OVERRIDE_SINCE_2_7 override
#else
#define OVERRIDE_SINCE_2_7
#endif

#if !TORCH_SINCE(2, 0)
namespace c10 {

// RuntimeError in Python. Without a backtrace, which torch would append to the message.
class DistBackendError : public Error {
 public:
  DistBackendError(SourceLocation /*where*/, std::string message) : Error(std::move(message), "") {}
};

} // namespace c10
#endif

namespace ccl_backend {

// The class of a group's backend. Before torch 2.0, a group has no backends: it is one.
#if TORCH_SINCE(2, 0)
using Backend = c10d::Backend;
constexpr auto kDefaultTimeout = kBackendDefaultTimeout;
#else
using Backend = c10d::ProcessGroup;
constexpr auto kDefaultTimeout = kProcessGroupDefaultTimeout;
#endif

#if TORCH_SINCE(1, 13)
using Work = c10d::Work;
using OpKind = c10d::ReduceOp::RedOpType;
constexpr auto kPremulSum = c10d::ReduceOp::PREMUL_SUM;
inline OpKind kind_of(const c10d::ReduceOp& op) {
  return op.op_;
}
#else
using Work = c10d::ProcessGroup::Work;
using OpKind = c10d::ReduceOp;
constexpr auto kPremulSum = static_cast<OpKind>(255); // does not exist
inline OpKind kind_of(const c10d::ReduceOp& op) {
  return op;
}
#endif

#if TORCH_SINCE(1, 11)
constexpr auto kAverage = OpKind::AVG;
inline at::ScalarType real_type_of(at::ScalarType type) {
  return at::toRealValueType(type);
}
#else
constexpr auto kAverage = static_cast<OpKind>(254); // does not exist
inline at::ScalarType real_type_of(at::ScalarType type) {
  return at::toValueType(type);
}
#endif

// Multiplies in place by the factor of PREMUL_SUM, in the tensor's type. Returns false if the operation has no factor.
inline bool multiply_by_factor(at::Tensor& tensor, const c10d::ReduceOp& op) {
#if TORCH_SINCE(1, 13)
  const auto* const factor = reinterpret_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) {
    return false;
  }
#if TORCH_SINCE(2, 0)
  const auto& other = factor->tensor_factor;
#else
  const auto other = factor->tensor_factors.empty() ? at::Tensor() : factor->tensor_factors.front();
#endif
  if (other.defined()) {
    tensor.mul_(other.to(tensor.scalar_type()).reshape({}));
  } else {
    tensor.mul_(factor->double_factor);
  }
  return true;
#else
  return false;
#endif
}

#if TORCH_SINCE(2, 1)
constexpr auto kCoalesced = c10d::OpType::COALESCED;
#else
constexpr auto kCoalesced = c10d::OpType::UNKNOWN;
#endif

#if TORCH_SINCE(2, 7)
using c10d::ErrorType;
#else
enum class ErrorType { SUCCESS, COMM_ERROR };
#endif

// The class of options that torch registers with Python.
#if TORCH_SINCE(2, 5)
using PythonOptions = Backend::Options;
#else
using PythonOptions = c10d::ProcessGroup::Options;
#endif

// "float32", as Python calls it.
inline std::string dtype_name(at::ScalarType type) {
#if TORCH_SINCE(2, 5)
  return std::string(c10::getDtypeNames(type).first);
#else
  return torch::utils::getDtypeNames(type).first;
#endif
}

// Stores take and return strings since torch 2.0.
inline void put_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

inline std::string get_text(c10d::Store& store, const std::string& key) {
  const auto value = store.get(key);
  return {value.begin(), value.end()};
}

#if !TORCH_SINCE(1, 11)
// One thread at a time uses the connection. torch's own class has no mutex before 1.11: two threads read each other's
// answers, and the server closes the connection.
class LockedTCPStore final : public c10d::TCPStore {
 public:
  using TCPStore::TCPStore;
  using TCPStore::wait;

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    std::lock_guard<std::mutex> guard(mutex_);
    TCPStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    std::lock_guard<std::mutex> guard(mutex_);
    return TCPStore::get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    std::lock_guard<std::mutex> guard(mutex_);
    return TCPStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    std::lock_guard<std::mutex> guard(mutex_);
    return TCPStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    std::lock_guard<std::mutex> guard(mutex_);
    TCPStore::wait(keys, timeout);
  }

 private:
  std::mutex mutex_;
};
#elif !TORCH_SINCE(2, 8)
using LockedTCPStore = c10d::TCPStore;
#endif

// A separate connection to the same store, for any number of threads. Before torch 2.8, only a store over TCP has one;
// any other store is shared.
inline c10::intrusive_ptr<c10d::Store> connect_again(const c10::intrusive_ptr<c10d::Store>& store) {
#if TORCH_SINCE(2, 8)
  return store->clone();
#else
  struct Prefix : c10d::PrefixStore { // gives access to the protected members
    static const std::string& of(const c10d::PrefixStore& store) {
      return store.*&Prefix::prefix_;
    }
    static const c10::intrusive_ptr<c10d::Store>& store_of(const c10d::PrefixStore& store) {
      return store.*&Prefix::store_;
    }
  };
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    return c10::make_intrusive<c10d::PrefixStore>(
        Prefix::of(*prefixed), connect_again(Prefix::store_of(*prefixed)));
  }
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
    c10d::TCPStoreOptions options;
    options.port = tcp->getPort();
    options.waitWorkers = false;
    options.timeout = tcp->getTimeout();
    return c10::make_intrusive<LockedTCPStore>(tcp->getHost(), options);
  }
  return store;
#endif
}

} // namespace ccl_backend
