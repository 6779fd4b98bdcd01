// What the ranks of a group tell each other about those that are gone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace ccl_backend {

struct Departure {
  enum class Kind : uint8_t {
    kLost, // killed, or its host cannot be reached
    kLeft, // left the group, or ended in order
    kFailed, // gave the group up, and lives
  };

  int rank; // in the group
  Kind kind;
  // The last collective that it had started. After kLeft one with a higher number can never complete; one up to it
  // may: what the rank had sent may still be passed on by others.
  uint64_t sequence;
  std::chrono::steady_clock::time_point noticed;
};

// Kind, rank and sequence, little-endian.
using Message = std::array<uint8_t, 1 + 4 + 8>;

Message encode(const Departure& departure);

// Noticed now; none where the kind is not known, or the rank not in a group of `size`.
std::optional<Departure> decode(const Message& message, int size);

// Each rank once: what was heard first is what it said itself, the rest follows from it.
class Departures {
 public:
  // False if the rank is known already.
  bool add(const Departure& departure);

  // Of a kind the first; of those that left, the one that can take part in the fewest collectives.
  std::optional<Departure> find(Departure::Kind kind) const;

 private:
  std::vector<Departure> all_;
};

} // namespace ccl_backend
