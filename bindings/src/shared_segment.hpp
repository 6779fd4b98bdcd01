// Memory that all ranks of a group share, if they are on one node.
#pragma once

#include "clock.hpp"
#include "group_options.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <sys/types.h>

namespace ccl_backend {

// Each rank has two slots for data, used alternately, and counters of the slots that it has filled, reduced and read.
// Only the owner writes to them. The segment has no name in /dev/shm: it ends with the last process that maps it.
class SharedSegment {
 public:
  // Two slots of a rank fit into the L2 cache of its core, beside the parts of the tensor that are copied to them.
  static constexpr size_t kSlotBytes = 256 << 10;
  static constexpr int kMostRanks = 8;

  // A call that a rank has started.
  struct Announced {
    std::atomic<uint64_t> sequence{0}; // zero while the others change
    std::atomic<uint64_t> arguments{0}; // a hash
    std::atomic<int64_t> sent[kMostRanks]{}; // of an exchange: elements for each rank
  };
  static constexpr size_t kAnnounced = 8;

  struct Counters {
    alignas(64) std::atomic<uint64_t> filled{0};
    std::atomic<uint64_t> calls[2]{}; // what the slots contain, see SharedCall
    alignas(64) std::atomic<uint64_t> reduced{0};
    alignas(64) std::atomic<uint64_t> read{0};
    alignas(64) Announced announced[kAnnounced]{}; // the last calls, by their sequence
  };

  // A collective of all ranks of the store. nullptr on all ranks if one of them cannot map the memory, for example
  // because it is on another node. `check` is called while this rank waits, and may raise.
  static std::shared_ptr<SharedSegment> create(
      const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
      const std::function<void()>& check);

  SharedSegment(void* memory, int rank, int size);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  Counters& counters(int of_rank) const {
    return reinterpret_cast<Counters*>(memory_)[of_rank];
  }
  // The slot of a rank for the data with this number.
  char* slot(int of_rank, uint64_t number) const {
    return memory_ + kHeaderBytes + (2 * static_cast<size_t>(of_rank) + number % 2) * kSlotBytes;
  }
  static size_t bytes(int size) {
    return kHeaderBytes + 2 * kSlotBytes * size;
  }

  const int rank;
  const int size;

 private:
  static constexpr size_t kHeaderBytes = 8192; // the counters of all ranks
  static_assert(sizeof(Counters) * kMostRanks <= kHeaderBytes);

  char* const memory_;
  const pid_t process_;
};

} // namespace ccl_backend
