// The messages by which the ranks of a group report which ranks have ended, failed or left.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace ccl_backend {

struct Departure {
  enum class Kind : uint8_t {
    kLost, // ended without leaving, or its host is unreachable
    kLeft, // left the group, or its process exited
    kFailed, // gave up the group, and is still running
  };

  int rank; // in the group
  Kind kind;
  // The last collective that the rank had started. After kLeft, a collective with a higher number can never complete.
  // Collectives up to this number may: other ranks may still be forwarding what the rank had sent.
  uint64_t sequence;
  std::chrono::steady_clock::time_point noticed;
};

// Kind, rank and sequence, little-endian.
using Message = std::array<uint8_t, 1 + 4 + 8>;

Message encode(const Departure& departure);

// `noticed` is the current time. None if the kind is unknown, or the rank is not in a group of `size`.
std::optional<Departure> decode(const Message& message, int size);

// Keeps the first departure of each rank: later ones are its consequences.
class Departures {
 public:
  // Returns false if the rank has a departure already.
  bool add(const Departure& departure);

  // The first departure of this kind; for kLeft, the one with the lowest sequence.
  std::optional<Departure> find(Departure::Kind kind) const;

 private:
  std::vector<Departure> all_;
};

} // namespace ccl_backend
