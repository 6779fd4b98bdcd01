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

Message encode(const Header& header) {
  Message message;
  auto* to = write(write(message.data(), header.kind), header.number);
  for (const auto number : header.numbers) {
    to = write(to, number);
  }
  return message;
}

Header decode(const Message& message) {
  Header header;
  const auto* from = read(read(message.data(), header.kind), header.number);
  for (auto& number : header.numbers) {
    from = read(from, number);
  }
  return header;
}

std::optional<Departure> departure_of(const Header& header, int size) {
  const auto [kind, rank, sequences] = header;
  if (kind > static_cast<uint8_t>(Departure::Kind::kFailed) || rank >= static_cast<uint32_t>(size)) {
    return std::nullopt;
  }
  return Departure{
      static_cast<int>(rank), static_cast<Departure::Kind>(kind), sequences, std::chrono::steady_clock::now()};
}

bool Departures::add(const Departure& departure) {
  if (has(departure.rank)) {
    return false;
  }
  all_.push_back(departure);
  return true;
}

bool Departures::has(int rank) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& known) { return known.rank == rank; });
}

int Departures::count_others(int rank) const {
  return static_cast<int>(all_.size()) - (has(rank) ? 1 : 0);
}

std::optional<Departure> Departures::find(Departure::Kind kind) const {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const auto& departure) { return departure.kind == kind; });
  return found == all_.end() ? std::nullopt : std::make_optional(*found);
}

std::optional<Departure> Departures::find_left(const Needs& needs, int size) const {
  const bool from_any = needs.sequence == 0 && needs.peer == Needs::kAnyRank;
  int others = size - 1; // that have not left
  for (const auto& departure : all_) {
    if (departure.kind != Departure::Kind::kLeft) {
      continue;
    }
    --others;
    const bool is_needed = needs.sequence > 0 ? needs.sequence > departure.sequences[needs.lane]
        : from_any                            ? others == 0
                                              : departure.rank == needs.peer;
    if (is_needed) {
      return departure;
    }
  }
  return std::nullopt;
}

} // namespace ccl_backend
