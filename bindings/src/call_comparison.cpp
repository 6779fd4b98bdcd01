#include "call_comparison.hpp"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace ccl_backend {
namespace {

constexpr const char* kNames[] = {
    "all_gather",         "all_gather_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced",
    "all_reduce",         "all_reduce_coalesced", "all_to_all",             "all_to_all_single",
    "barrier",            "broadcast",            "gather",                 "reduce",
    "reduce_scatter",     "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "scatter"};

// FNV-1a.
constexpr uint32_t hash_of(const char* text) {
  uint32_t hash = 2166136261U;
  for (; *text != '\0'; ++text) {
    hash = (hash ^ static_cast<uint8_t>(*text)) * 16777619U;
  }
  return hash;
}

const char* name_of(uint32_t hash) {
  const auto* const found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const char* name) { return hash_of(name) == hash; });
  return found == std::end(kNames) ? "another collective" : *found;
}

template <typename Queue, typename Item>
void push(Queue& queue, const Item& item) {
  if (queue.size() == CallComparison::kMost) {
    queue.pop_front();
  }
  queue.push_back(item);
}

} // namespace

uint64_t hash_arguments(const Started& call, const Sizes& sizes) {
  const auto small = (static_cast<uint64_t>(hash_of(call.name)) << 32) ^ (static_cast<uint64_t>(call.type) << 24) ^
      (static_cast<uint64_t>(call.op) << 16) ^ static_cast<uint64_t>(call.root + 1);
  return c10::hash_combine(small, sizes.equal);
}

std::string CallRecord::describe(int lane) const {
  Started call{sequence, name_of(name), lane, elements, static_cast<c10::ScalarType>(type)};
  call.op = op;
  call.root = static_cast<int>(root);
  return call.describe();
}

std::string CallDifference::describe(int64_t previous_rank, int64_t rank) const {
  const auto theirs = previous.describe(static_cast<int>(lane));
  const auto own = call.describe(static_cast<int>(lane));
  const auto says = [](int64_t caller, const std::string& what) { return c10::str("rank ", caller, " called ", what); };
  const auto text = previous_rank < rank ? says(previous_rank, theirs) + ", " + says(rank, own)
                                         : says(rank, own) + ", " + says(previous_rank, theirs);
  if (theirs != own) {
    return text;
  }
  return text + (call.is_exchange != 0 ? ", and what they send each other has other sizes" : ", with other sizes");
}

void CallComparison::add(const Started& call, const Sizes& sizes) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto& lane = lanes_[call.lane];
  const auto& last_call = lane.last;
  const bool repeats = last_call.name == call.name && last_call.type == call.type && last_call.op == call.op &&
      last_call.root == call.root && lane.last_sizes == sizes.equal;
  lane.last = call;
  lane.last_sizes = sizes.equal;
  const auto is_extended = [&](CallRecord& last) {
    const bool is_equal = last.elements == call.elements && last.to == sizes.to_next && last.from == sizes.from_next;
    if (!repeats || !is_equal || last.sequence + last.count != call.sequence) {
      return false;
    }
    ++last.count;
    return true;
  };
  const bool sent_later = !lane.unsent.empty() && is_extended(lane.unsent.back());
  const bool compared_later = !lane.own.empty() && lane.own.back().to_previous == sizes.to_previous &&
      lane.own.back().from_previous == sizes.from_previous && is_extended(lane.own.back().record);
  if (sent_later && compared_later) {
    return;
  }
  const CallRecord record{
      call.sequence, 1,             hash_of(call.name), static_cast<uint8_t>(call.type), call.op, sizes.is_exchange,
      call.root,     call.elements, sizes.equal,        sizes.to_next,                   sizes.from_next};
  if (!sent_later) {
    push(lane.unsent, record);
  }
  if (!compared_later) {
    push(lane.own, Own{record, sizes.to_previous, sizes.from_previous});
  }
}

void CallComparison::receive(int lane, const std::vector<CallRecord>& calls) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& call : calls) {
    push(lanes_[lane].previous, call);
  }
}

std::vector<CallRecord> CallComparison::take_unsent(int lane) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto& unsent = lanes_[lane].unsent;
  std::vector<CallRecord> taken(unsent.begin(), unsent.end());
  unsent.clear();
  return taken;
}

bool CallComparison::differ(const Own& own, const CallRecord& previous) {
  const auto& record = own.record;
  return record.name != previous.name || record.type != previous.type || record.op != previous.op ||
      record.root != previous.root || record.sizes != previous.sizes ||
      (record.is_exchange != 0 && (previous.to != own.from_previous || previous.from != own.to_previous));
}

std::optional<CallDifference> CallComparison::find() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (size_t number = 0; number < lanes_.size() && !is_found_; ++number) {
    auto& lane = lanes_[number];
    while (!lane.own.empty() && !lane.previous.empty()) {
      auto& own = lane.own.front().record;
      auto& theirs = lane.previous.front();
      const auto own_end = own.sequence + own.count;
      const auto their_end = theirs.sequence + theirs.count;
      const auto begin = std::max(own.sequence, theirs.sequence);
      const auto end = std::min(own_end, their_end);
      if (begin < end && differ(lane.own.front(), theirs)) {
        own.drop(begin - own.sequence);
        theirs.drop(begin - theirs.sequence);
        is_found_ = true;
        return CallDifference{own, theirs, static_cast<int64_t>(number)};
      }
      // What is left of each has no counterpart yet.
      if (own_end > end && own.sequence < end) {
        own.drop(end - own.sequence);
      }
      if (their_end > end && theirs.sequence < end) {
        theirs.drop(end - theirs.sequence);
      }
      if (own_end == end) {
        lane.own.pop_front();
      }
      if (their_end == end) {
        lane.previous.pop_front();
      }
    }
  }
  return std::nullopt;
}

} // namespace ccl_backend
