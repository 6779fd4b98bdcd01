#include "oneccl_private.hpp"

#include <c10/util/StringUtil.h>

#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace ccl_backend {
namespace {

// libfabric's, whose layout is part of its interface.
struct ErrorEntry {
  void* context;
  uint64_t flags;
  size_t length;
  void* buffer;
  uint64_t data;
  uint64_t tag;
  size_t lost_length;
  int error;
  int provider_error;
  void* error_data;
  size_t error_data_size;
  uint64_t source;
};
struct CompletionQueue {
  struct Functions {
    size_t size;
    void* read;
    void* read_from;
    ssize_t (*read_error)(CompletionQueue*, ErrorEntry*, uint64_t flags);
  };
  void* base[3];
  Functions* functions;
};
// oneCCL's atl_ofi_prov_ep_t.
struct Endpoint {
  void* to_send;
  void* to_receive;
  CompletionQueue* queue;
};

constexpr int kTruncated = 265;
// oneCCL's atl_status_t.
constexpr int kSuccess = 0;
constexpr int kFailure = 1;

thread_local bool raises = false;

std::atomic<bool> has_error{false};
std::mutex& mutex = *new std::mutex();
std::string& last_error = *new std::string();

void keep_error(std::string text) {
  std::lock_guard<std::mutex> guard(mutex);
  last_error = std::move(text);
  has_error.store(true, std::memory_order_release);
}

std::string describe(const ErrorEntry& entry) {
  return entry.error == kTruncated
      ? "a rank received a message that is larger than its tensor: the tensors of the ranks differ in size"
      : c10::str("a transfer failed: ", std::strerror(entry.error), " (", entry.error, ")");
}

// Returns success, so that transfers that have not failed go on.
extern "C" int handle_queue_error(void*, Endpoint* endpoint) __asm__(
    "_ZN7atl_ofi21prov_ep_handle_cq_errEP17atl_ofi_prov_ep_t");
int handle_queue_error(void*, Endpoint* endpoint) {
  ErrorEntry entry{};
  entry.source = UINT64_MAX; // unknown; older providers do not set it
  auto* const queue = endpoint->queue;
  if (queue->functions->read_error(queue, &entry, 0) != 1) {
    keep_error("the reason of a failed transfer cannot be read");
  } else if (entry.error == ECANCELED) { // no failure, as in oneCCL
    return kSuccess;
  } else {
    keep_error(describe(entry));
  }
  return raises ? kFailure : kSuccess;
}

} // namespace

RaiseTransferErrors::RaiseTransferErrors() {
  raises = true;
}

RaiseTransferErrors::~RaiseTransferErrors() {
  raises = false;
}

std::optional<std::string> take_transfer_error() {
  if (!has_error.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  std::lock_guard<std::mutex> guard(mutex);
  has_error = false;
  return last_error;
}

} // namespace ccl_backend
