// Whether the ranks of a group call the same collectives with the same arguments.
#pragma once

#include "call_log.hpp"
#include "departures.hpp"

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ccl_backend {

// What the ranks compare of a call's sizes.
struct Sizes {
  uint64_t equal = 0; // a hash of those that are the same on all ranks
  // In elements, of an exchange: what this rank sends to its neighbours in the ring, and expects from them.
  bool is_exchange = false;
  int64_t to_next = 0;
  int64_t to_previous = 0;
  int64_t from_next = 0;
  int64_t from_previous = 0;
};

// Of what is the same on all ranks: name, type, operation, root and sizes.
uint64_t hash_arguments(const Started& call, const Sizes& sizes);

// Equal calls that follow each other, as a rank sends them to the next rank in the ring: byte for byte, because all ranks
// have this layout.
struct CallRecord {
  uint64_t sequence; // of the first, in its lane
  uint64_t count;
  uint32_t name; // a hash
  uint8_t type;
  uint8_t op;
  uint16_t is_exchange;
  int64_t root;
  int64_t elements; // for the message only
  uint64_t sizes; // a hash of the sizes on which all ranks have to agree
  // Of an exchange: the elements that this rank sends to the next rank, and those that it expects from it.
  int64_t to;
  int64_t from;

  // "#5 broadcast(float32, 10, root 0)"
  std::string describe(int lane) const;
  // Without the first calls.
  void drop(uint64_t calls) {
    sequence += calls;
    count -= calls;
  }
};
static_assert(sizeof(CallRecord) == 64);

// A call that differs between two neighbours. Sent byte for byte.
struct CallDifference {
  CallRecord call; // of this rank
  CallRecord previous; // of the previous rank in the ring
  int64_t lane;

  // "rank 0 called #5 broadcast(float32, 10, root 0), rank 1 called #5 broadcast(float32, 4, root 0)"
  std::string describe(int64_t previous_rank, int64_t rank) const;
};

// Compares the calls of this rank with those of the previous rank in the ring, and keeps what the next rank has not got
// yet. A call never waits for the comparison, so a program may already use a wrong result when the group fails. If all
// neighbours are equal, all ranks are. The sizes of an exchange (gather, scatter, all_to_all) differ
// legally between ranks, so only what two neighbours send each other is compared.
//
// Thread-safe.
class CallComparison {
 public:
  // Records of a lane. If the ranks are further apart, the oldest are not compared.
  static constexpr size_t kMost = 4096;

  // This rank starts a collective.
  void add(const Started& call, const Sizes& sizes);
  // Calls of the previous rank, in their order.
  void receive(int lane, const std::vector<CallRecord>& calls);
  // Calls that the next rank does not know, in their order. Empty if there is none.
  std::vector<CallRecord> take_unsent(int lane);
  // The first difference among the calls that both ranks have started; only once.
  std::optional<CallDifference> find();

 private:
  struct Own {
    CallRecord record;
    int64_t to_previous;
    int64_t from_previous;
  };
  struct Lane {
    Started last;
    uint64_t last_sizes = 0;
    std::deque<CallRecord> unsent;
    std::deque<Own> own; // not compared
    std::deque<CallRecord> previous; // not compared
  };
  static bool differ(const Own& own, const CallRecord& previous);

  std::mutex mutex_;
  std::array<Lane, kLanes> lanes_;
  bool is_found_ = false;
};

} // namespace ccl_backend
