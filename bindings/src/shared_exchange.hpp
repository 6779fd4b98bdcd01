// Collectives through memory that the ranks of a node share.
#pragma once

#include "shared_segment.hpp"
#include "shared_sums.hpp"
#include "transfer.hpp"

#include <vector>

namespace ccl_backend {

// What a rank contributes to a collective, and where the result goes. The same on all ranks, except for addresses.
struct SharedCall {
  enum class Kind : uint8_t { kReduceAll, kReduceScatter, kGather };

  Kind kind;
  // kReduceAll: one input, and one output of the same size, possibly the same memory. kReduceScatter: an input for each
  // rank, and one output. kGather: one input, and an output for each rank.
  std::vector<const char*> inputs;
  std::vector<char*> outputs;
  size_t bytes; // of each input and output
  SumFunction sum = nullptr;
  uint64_t type = 0; // of the elements, compared between the ranks
};

// The collectives of one lane of a group, which run one after another in the order of their calls. All members are
// called with the engine locked.
//
// Data goes through the slots of the segment in steps: a rank copies what the other ranks need to its slot, adds its own
// part of all slots, and copies the other ranks' sums from their slots. Each byte of a tensor is read from memory once
// and written once; the slots stay in the caches. A rank that waits for other ranks returns from `test`.
class SharedExchange : public std::enable_shared_from_this<SharedExchange> {
 public:
  explicit SharedExchange(std::shared_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}

  // As SharedSegment::create.
  static std::shared_ptr<SharedExchange> create(
      const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
      const std::function<void()>& check) {
    auto segment = SharedSegment::create(group, store, limit, check);
    return segment ? std::make_shared<SharedExchange>(std::move(segment)) : nullptr;
  }

  // Before a call starts, raises DistBackendError if another rank has started a different one with this number. Each
  // rank checks what it is about to receive: libfabric 2.4 crashes if a large message has arrived and the receive is too
  // small. `arguments`: a hash. `sent`, `received`: of an exchange, for each rank.
  void announce(
      uint64_t sequence, uint64_t arguments, const std::vector<int64_t>& sent, const std::vector<int64_t>& received);

  // The transfer makes progress in `test`, which raises DistBackendError if another rank's call differs.
  Transfer start(SharedCall call);

  // Whether the ranks are in the middle of a collective: they wait for each other for microseconds, not milliseconds.
  static bool is_busy();

 private:
  friend class SharedTransfer;

  const std::shared_ptr<SharedSegment> segment_;
  uint64_t started_ = 0; // calls
  uint64_t finished_ = 0;
  uint64_t steps_ = 0; // of all finished calls: the same on every rank
};

} // namespace ccl_backend
