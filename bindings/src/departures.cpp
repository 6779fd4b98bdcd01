#include "departures.hpp"

#include <algorithm>

namespace ccl_backend {
namespace {

template <typename Number>
uint8_t* write(uint8_t* to, Number number) {
  for (size_t i = 0; i < sizeof(number); ++i) {
    *to++ = static_cast<uint8_t>(number >> (8 * i));
  }
  return to;
}

template <typename Number>
const uint8_t* read(const uint8_t* from, Number& number) {
  number = 0;
  for (size_t i = 0; i < sizeof(number); ++i) {
    number |= static_cast<Number>(*from++) << (8 * i);
  }
  return from;
}

} // namespace

Message encode(const Departure& departure) {
  Message message;
  auto* to = write(message.data(), static_cast<uint8_t>(departure.kind));
  to = write(to, static_cast<uint32_t>(departure.rank));
  write(to, departure.sequence);
  return message;
}

std::optional<Departure> decode(const Message& message, int size) {
  uint8_t kind;
  uint32_t rank;
  uint64_t sequence;
  read(read(read(message.data(), kind), rank), sequence);
  if (kind > static_cast<uint8_t>(Departure::Kind::kFailed) || rank >= static_cast<uint32_t>(size)) {
    return std::nullopt;
  }
  return Departure{
      static_cast<int>(rank), static_cast<Departure::Kind>(kind), sequence, std::chrono::steady_clock::now()};
}

bool Departures::add(const Departure& departure) {
  const auto same = [&](const auto& known) { return known.rank == departure.rank; };
  if (std::any_of(all_.begin(), all_.end(), same)) {
    return false;
  }
  all_.push_back(departure);
  return true;
}

std::optional<Departure> Departures::find(Departure::Kind kind) const {
  std::optional<Departure> found;
  for (const auto& departure : all_) {
    const bool is_earlier = found && kind == Departure::Kind::kLeft && departure.sequence < found->sequence;
    if (departure.kind == kind && (!found || is_earlier)) {
      found = departure;
    }
  }
  return found;
}

} // namespace ccl_backend
