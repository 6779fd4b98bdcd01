#include "hierarchy.hpp"

#include <algorithm>
#include <deque>

namespace ccl_backend {
namespace {

using Kind = SharedCall::Kind;

// Of a rank's slice of a chunk: large enough for the network's bandwidth, and small enough that several chunks overlap.
constexpr size_t kSliceBytes = 1 << 20;
// Chunks that are between their first step and their last.
constexpr size_t kDepth = 2;

} // namespace

// One sum of this rank. The calls within a node have the same order on all its ranks, since it depends on their number
// only: the slices of chunks 0 and 1, the results of 0, the slices of 2, the results of 1, and so on.
class HierarchicalTransfer final : public Progress {
 public:
  HierarchicalTransfer(std::shared_ptr<Hierarchy> hierarchy, Hierarchy::Sum sum)
      : hierarchy_(std::move(hierarchy)),
        sum_(std::move(sum)),
        count_(sum_.count / hierarchy_->node_size_), // of elements in all slices of a rank
        slice_(std::max<size_t>(1, std::min(count_, kSliceBytes / sum_.element_bytes))),
        chunks_((count_ + slice_ - 1) / slice_),
        number_(hierarchy_->started_++) {}

  bool test() override {
    if (number_ != hierarchy_->finished_) {
      return number_ < hierarchy_->finished_; // otherwise an earlier call of this lane is not complete
    }
    while (advance()) {
    }
    if (gathered_ == chunks_ && within_.is_complete()) {
      ++hierarchy_->finished_;
      return true;
    }
    return false;
  }
  bool is_oneccl() const override {
    return !across_.empty();
  }

 private:
  // Does what can be done without waiting. Returns false if that is nothing.
  bool advance() {
    if (!across_.empty()) {
      (void)across_.front().test(); // also makes progress with the later ones
    }
    if (!within_.is_complete() && !within_.test()) {
      return false;
    }
    if (summed_ < scattered_) {
      across_.push_back(sum_.start(own_slice(summed_), elements(summed_), hierarchy_->across_));
      ++summed_;
      return true;
    }
    if (scattered_ < chunks_ && scattered_ < gathered_ + kDepth) {
      within_ = start(Kind::kReduceScatter, scattered_++);
      return true;
    }
    if (gathered_ < summed_ && across_.front().test()) {
      across_.pop_front();
      within_ = start(Kind::kGather, gathered_++);
      return true;
    }
    return false;
  }

  // Elements of each slice of a chunk.
  size_t elements(size_t chunk) const {
    return std::min(slice_, count_ - chunk * slice_);
  }
  char* slice(size_t chunk, int position) const {
    const auto begin = chunk * slice_ * hierarchy_->node_size_ + position * elements(chunk);
    return sum_.data + begin * sum_.element_bytes;
  }
  char* own_slice(size_t chunk) const {
    return slice(chunk, hierarchy_->position_);
  }

  Transfer start(Kind kind, size_t chunk) const {
    SharedCall call{kind, {}, {}, elements(chunk) * sum_.element_bytes, sum_.add, sum_.type};
    std::vector<char*> slices;
    for (int position = 0; position < hierarchy_->node_size_; ++position) {
      slices.push_back(slice(chunk, position));
    }
    const std::vector<char*> own{own_slice(chunk)};
    const auto& inputs = kind == Kind::kGather ? own : slices;
    call.inputs.assign(inputs.begin(), inputs.end());
    call.outputs = kind == Kind::kGather ? slices : own;
    return hierarchy_->node_->start(std::move(call));
  }

  const std::shared_ptr<Hierarchy> hierarchy_;
  const Hierarchy::Sum sum_;
  const size_t count_;
  const size_t slice_; // elements of a slice, except in the last chunk
  const size_t chunks_;
  const uint64_t number_;
  Transfer within_; // the call within the node, or complete
  std::deque<Transfer> across_; // sums over the network, of chunks from `gathered_` to `summed_`
  size_t scattered_ = 0; // chunks whose slices the node's ranks have begun to add
  size_t summed_ = 0; // whose sums over the network have begun
  size_t gathered_ = 0; // whose results the node's ranks have begun to copy
};

Transfer Hierarchy::start(Sum sum) {
  auto transfer = std::make_unique<HierarchicalTransfer>(shared_from_this(), std::move(sum));
  (void)transfer->test(); // the first slices, for the other ranks
  return Transfer(std::move(transfer));
}

} // namespace ccl_backend
