#include "shared_exchange.hpp"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace ccl_backend {
namespace {

using Kind = SharedCall::Kind;

constexpr size_t kLine = 64;
// A tensor up to this size is copied to the slot as a whole, and every rank adds all slots: one wait instead of two.
constexpr size_t kWholeBytes = 16 << 10;
// Of one poll, which other threads wait for.
constexpr int kStepsOfPoll = 16;
// A rank that computes polls every millisecond. Meanwhile, the other ranks keep polling.
constexpr std::chrono::microseconds kBusy{1200};

std::atomic<Clock::rep> busy_until{0};

[[noreturn]] void raise_difference() {
  C10_THROW_ERROR(DistBackendError, "another rank calls a different collective, or has another size or type");
}

} // namespace

// One collective of this rank.
class SharedTransfer final : public Progress {
 public:
  SharedTransfer(std::shared_ptr<SharedExchange> exchange, SharedCall call)
      : exchange_(std::move(exchange)),
        segment_(*exchange_->segment_),
        call_(std::move(call)),
        is_whole_(call_.kind == Kind::kReduceAll && call_.bytes <= kWholeBytes),
        has_results_(call_.kind != Kind::kReduceScatter && !is_whole_),
        step_bytes_(call_.kind == Kind::kReduceScatter ? SharedSegment::kSlotBytes / size() / kLine * kLine
                                                       : SharedSegment::kSlotBytes),
        count_((call_.bytes + step_bytes_ - 1) / step_bytes_),
        number_(exchange_->started_++) {}

  bool test() override {
    if (number_ != exchange_->finished_) {
      return number_ < exchange_->finished_; // otherwise an earlier call of this lane is not complete
    }
    bool has_moved = false;
    for (int i = 0; i < kStepsOfPoll && read_ < count_; ++i) {
      if (!advance()) {
        break;
      }
      has_moved = true;
    }
    if (read_ == count_) {
      exchange_->steps_ += count_;
      ++exchange_->finished_;
      return true;
    }
    if (has_moved && reduced_ > 0) { // the other ranks take part
      busy_until.store((Clock::now() + kBusy).time_since_epoch().count(), std::memory_order_relaxed);
    }
    return false;
  }

 private:
  using Counter = std::atomic<uint64_t> SharedSegment::Counters::*;

  struct Range {
    size_t begin;
    size_t end;
    size_t size() const {
      return end - begin;
    }
  };

  int size() const {
    return segment_.size;
  }
  int rank() const {
    return segment_.rank;
  }
  // The number of a step among all steps of the lane.
  uint64_t global(size_t step) const {
    return exchange_->steps_ + step;
  }
  char* slot(int of_rank, size_t step) const {
    return segment_.slot(of_rank, global(step));
  }

  bool all_reached(Counter counter, uint64_t value) const {
    for (int i = 1; i < size(); ++i) {
      const int other = (rank() + i) % size();
      if ((segment_.counters(other).*counter).load(std::memory_order_acquire) < value) {
        return false;
      }
    }
    return true;
  }
  void count(Counter counter, uint64_t value) const {
    (segment_.counters(rank()).*counter).store(value, std::memory_order_release);
  }

  // Does what can be done without waiting. Returns false if that is nothing.
  bool advance() {
    using Counters = SharedSegment::Counters;
    bool has_moved = false;
    // A slot can be filled again when all ranks have read it, two steps before.
    const bool has_slot = filled_ < count_ && filled_ < reduced_ + 2 &&
        (global(filled_) < 2 || all_reached(&Counters::read, global(filled_) - 1));
    if (has_slot) {
      fill(filled_);
      segment_.counters(rank()).calls[global(filled_) % 2].store(what(), std::memory_order_relaxed);
      count(&Counters::filled, global(++filled_));
      has_moved = true;
    }
    if (reduced_ < filled_ && all_reached(&Counters::filled, global(reduced_) + 1)) {
      require_same_call(reduced_);
      reduce(reduced_);
      count(&Counters::reduced, global(++reduced_));
      has_moved = true;
    }
    if (read_ < reduced_ && (!has_results_ || all_reached(&Counters::reduced, global(read_) + 1))) {
      if (has_results_) {
        read(read_);
      }
      count(&Counters::read, global(++read_));
      has_moved = true;
    }
    return has_moved;
  }

  uint64_t what() const {
    return c10::hash_combine(
        c10::hash_combine(static_cast<uint64_t>(call_.kind), call_.type), static_cast<uint64_t>(call_.bytes));
  }

  void require_same_call(size_t step) const {
    for (int other = 0; other < size(); ++other) {
      if (segment_.counters(other).calls[global(step) % 2].load(std::memory_order_relaxed) != what()) {
        raise_difference();
      }
    }
  }

  // The bytes of the tensors that a step covers.
  Range window(size_t step) const {
    return {step * step_bytes_, std::min(call_.bytes, (step + 1) * step_bytes_)};
  }
  // The part of a window that a rank adds, relative to the window.
  Range part(size_t window_bytes, int of_rank) const {
    const auto lines = (window_bytes + kLine - 1) / kLine;
    const auto share = (lines + size() - 1) / size() * kLine;
    return {std::min(window_bytes, of_rank * share), std::min(window_bytes, (of_rank + 1) * share)};
  }

  void fill(size_t step) const {
    const auto range = window(step);
    auto* const to = slot(rank(), step);
    if (call_.kind == Kind::kGather || is_whole_) {
      std::memcpy(to, call_.inputs.front() + range.begin, range.size());
      return;
    }
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) {
        continue;
      }
      if (call_.kind == Kind::kReduceScatter) {
        std::memcpy(to + other * step_bytes_, call_.inputs[other] + range.begin, range.size());
      } else {
        const auto theirs = part(range.size(), other);
        std::memcpy(to + theirs.begin, call_.inputs.front() + range.begin + theirs.begin, theirs.size());
      }
    }
  }

  void reduce(size_t step) const {
    const auto range = window(step);
    if (call_.kind == Kind::kGather) {
      auto* const own = call_.outputs[rank()] + range.begin;
      if (own != call_.inputs.front() + range.begin) {
        std::memcpy(own, call_.inputs.front() + range.begin, range.size());
      }
      return;
    }
    const bool is_scatter = call_.kind == Kind::kReduceScatter;
    const auto mine = is_whole_ || is_scatter ? Range{0, range.size()} : part(range.size(), rank());
    const auto in_slot = is_scatter ? rank() * step_bytes_ : mine.begin;
    std::array<const void*, SharedSegment::kMostRanks> sources{};
    for (int other = 0; other < size(); ++other) {
      sources[other] = other == rank() ? call_.inputs[is_scatter ? rank() : 0] + range.begin + mine.begin
                                       : slot(other, step) + in_slot;
    }
    auto* const to = call_.outputs.front() + range.begin + mine.begin;
    const KeepSubnormals guard;
    call_.sum(sources.data(), size(), to, mine.size());
    if (has_results_) {
      std::memcpy(slot(rank(), step) + mine.begin, to, mine.size());
    }
  }

  // Copies what the other ranks have in their slots.
  void read(size_t step) const {
    const auto range = window(step);
    for (int i = 1; i < size(); ++i) {
      const int other = (rank() + i) % size();
      if (call_.kind == Kind::kGather) {
        std::memcpy(call_.outputs[other] + range.begin, slot(other, step), range.size());
      } else {
        const auto theirs = part(range.size(), other);
        std::memcpy(
            call_.outputs.front() + range.begin + theirs.begin, slot(other, step) + theirs.begin, theirs.size());
      }
    }
  }

  const std::shared_ptr<SharedExchange> exchange_;
  const SharedSegment& segment_;
  const SharedCall call_;
  const bool is_whole_;
  const bool has_results_; // other ranks' results are in their slots
  const size_t step_bytes_;
  const size_t count_; // of steps
  const uint64_t number_;
  size_t filled_ = 0; // steps
  size_t reduced_ = 0;
  size_t read_ = 0;
};

void SharedExchange::announce(
    uint64_t sequence, uint64_t arguments, const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const auto place = sequence % SharedSegment::kAnnounced;
  auto& own = segment_->counters(segment_->rank).announced[place];
  own.sequence.store(0, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  own.arguments.store(arguments, relaxed);
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    own.sent[rank].store(sent[rank], relaxed);
  }
  own.sequence.store(sequence, std::memory_order_release);
  for (int rank = 0; rank < segment_->size; ++rank) {
    const auto& theirs = segment_->counters(rank).announced[place];
    if (rank == segment_->rank || theirs.sequence.load(std::memory_order_acquire) != sequence) {
      continue;
    }
    const bool differs = theirs.arguments.load(relaxed) != arguments ||
        (!received.empty() && theirs.sent[segment_->rank].load(relaxed) != received[rank]);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (differs && theirs.sequence.load(relaxed) == sequence) {
      raise_difference();
    }
  }
}

Transfer SharedExchange::start(SharedCall call) {
  auto transfer = std::make_unique<SharedTransfer>(shared_from_this(), std::move(call));
  (void)transfer->test(); // the first step, for the other ranks
  return Transfer(std::move(transfer));
}

bool SharedExchange::is_busy() {
  return Clock::now().time_since_epoch().count() < busy_until.load(std::memory_order_relaxed);
}

} // namespace ccl_backend
