// The messages by which the ranks of a group report which ranks have ended, failed or left.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace ccl_backend {

// See Group.
constexpr int kLanes = 4;
// The number of a collective in each lane.
using Sequences = std::array<uint64_t, kLanes>;

struct Departure {
  enum class Kind : uint8_t {
    kLost, // ended without leaving, or its host is unreachable
    kLeft, // left the group, or its process exited
    kFailed, // gave up the group, and is still running
  };

  int rank; // in the group
  Kind kind;
  // Of kLeft: the last collectives that the rank had started, without those that it left incomplete. No collective with
  // a higher number in its lane is expected to complete. Collectives up to this number may: other ranks may still be
  // forwarding what the rank had sent.
  Sequences sequences;
  std::chrono::steady_clock::time_point noticed;
};

// What a call needs of the other ranks.
struct Needs {
  static constexpr int kAnyRank = -1; // a receive from any source needs one rank that is still there

  int lane = 0;
  uint64_t sequence = 0; // of a collective, which needs all ranks; zero: a message
  int peer = kAnyRank; // of a message
};

// The start of every message: of a departure, its kind, rank and sequences. Little-endian.
struct Header {
  uint8_t kind;
  uint32_t number;
  Sequences numbers;
};
using Message = std::array<uint8_t, 1 + 4 + 8 * kLanes>;

Message encode(const Header& header);
Header decode(const Message& message);

// `noticed` is the current time. None if the kind is unknown, or the rank is not in a group of `size`.
std::optional<Departure> departure_of(const Header& header, int size);

// Keeps the first departure of each rank: later ones are its consequences.
class Departures {
 public:
  // Returns false if the rank has a departure already.
  bool add(const Departure& departure);

  bool has(int rank) const;
  // Of ranks other than this one.
  int count_others(int rank) const;
  // The first departure of this kind.
  std::optional<Departure> find(Departure::Kind kind) const;
  // A rank that has left a group of `size` and without which the call cannot complete. Lost and failed ranks count as
  // still there: see `find`.
  std::optional<Departure> find_left(const Needs& needs, int size) const;

 private:
  std::vector<Departure> all_;
};

} // namespace ccl_backend
