#include "lifeline.hpp"

#include "ring.hpp"
#include "threads.hpp"
#include "types.hpp"

#include <pthread.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

namespace ccl_backend {
namespace {

using Kind = Departure::Kind;

constexpr const char* kUnreachableVariable = "CPU_TRAIN_STACK_UNREACHABLE_SECONDS";
constexpr std::chrono::seconds kUnreachable{25};

// All rings of the process, for leave_all. No other lock is taken under the mutex, so a fork can wait for it.
std::mutex rings_mutex;
std::set<std::shared_ptr<Ring>>& rings = *new std::set<std::shared_ptr<Ring>>();

[[maybe_unused]] const int at_fork = pthread_atfork(
    [] { rings_mutex.lock(); }, [] { rings_mutex.unlock(); }, [] { rings_mutex.unlock(); });

std::vector<std::shared_ptr<Ring>> all_rings() {
  std::lock_guard<std::mutex> guard(rings_mutex);
  return {rings.begin(), rings.end()};
}

std::chrono::seconds unreachable_limit() {
  const char* const text = std::getenv(kUnreachableVariable);
  if (text == nullptr) {
    return kUnreachable;
  }
  int seconds = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, seconds);
  CCL_CHECK(
      error == std::errc() && rest == end && seconds >= 2 && seconds <= 3600,
      kUnreachableVariable, " is '", text, "', expected an integer number of seconds from 2 to 3600");
  return std::chrono::seconds(seconds);
}

} // namespace

Lifeline::Lifeline(
    c10d::Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline,
    std::function<void()> peer_failed)
    : ring_(std::make_shared<Ring>(rank, size, unreachable_limit(), std::move(peer_failed))) {
  try {
    ring_->connect(store, deadline);
    start_thread(
        "ccl-lifeline", [ring = ring_] { ring->listen(); },
        [ring = ring_](const std::string&) { ring->break_down(); });
  } catch (...) {
    ring_->fail(); // else the neighbours would take the closed connections for the death of this rank
    throw;
  }
  std::lock_guard<std::mutex> guard(rings_mutex);
  rings.insert(ring_);
}

Lifeline::~Lifeline() {
  if (ring_->is_inherited()) {
    return;
  }
  {
    std::lock_guard<std::mutex> guard(rings_mutex);
    rings.erase(ring_);
  }
  ring_->leave(false);
}

void Lifeline::add(const Started& call, const Sizes& sizes) {
  ring_->add(call, sizes);
}

bool Lifeline::has_difference() const noexcept {
  return ring_->has_difference();
}

std::optional<Lifeline::Difference> Lifeline::difference() const {
  const auto found = ring_->difference();
  return found ? std::make_optional(Difference{ring_->previous_of(found->rank), found->rank, found->calls})
               : std::nullopt;
}

void Lifeline::withdraw(int lane, uint64_t sequence) noexcept {
  ring_->withdraw(lane, sequence);
}

void Lifeline::fail() noexcept {
  ring_->fail();
}

std::optional<Departure> Lifeline::failure() const {
  const auto lost = ring_->find(Kind::kLost);
  return lost ? lost : ring_->find(Kind::kFailed);
}

std::optional<Departure> Lifeline::find_left(const Needs& needs) const {
  return ring_->find_left(needs);
}

void Lifeline::compare_calls() {
  for (const auto& ring : all_rings()) {
    ring->compare_calls();
  }
}

void Lifeline::leave_all() noexcept {
  for (const auto& ring : all_rings()) {
    ring->leave(true);
  }
}

} // namespace ccl_backend
