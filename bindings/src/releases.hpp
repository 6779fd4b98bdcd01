// What differs between the releases of torch. The rows that are built with this source: docs/matrix.md.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/version.h>

#define TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !TORCH_SINCE(2, 5)
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/tensor_dtypes.h>
#endif
#if !TORCH_SINCE(2, 8)
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

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

namespace ccl_backend {

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
using PythonOptions = c10d::Backend::Options;
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

// A separate connection to the same store. Before torch 2.8, only a store over TCP has one; any other store is shared.
inline c10::intrusive_ptr<c10d::Store> connect_again(const c10::intrusive_ptr<c10d::Store>& store) {
#if TORCH_SINCE(2, 8)
  return store->clone();
#else
  struct Prefix : c10d::PrefixStore { // gives access to the protected member
    static const std::string& of(const c10d::PrefixStore& store) {
      return store.*&Prefix::prefix_;
    }
  };
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    return c10::make_intrusive<c10d::PrefixStore>(
        Prefix::of(*prefixed), connect_again(prefixed->getUnderlyingStore()));
  }
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
    c10d::TCPStoreOptions options;
    options.port = tcp->getPort();
    options.waitWorkers = false;
    options.timeout = tcp->getTimeout();
    return c10::make_intrusive<c10d::TCPStore>(tcp->getHost(), options);
  }
  return store;
#endif
}

} // namespace ccl_backend
