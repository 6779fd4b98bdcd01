#include "call_log.hpp"

#include "releases.hpp"
#include "types.hpp"

#include <algorithm>
#include <sstream>

namespace ccl_backend {

std::string Started::describe() const {
  if (sequence == 0) {
    return "nothing";
  }
  std::ostringstream text;
  text << (lane > 0 ? "callback #" : "#") << sequence << " " << name;
  if (elements >= 0) {
    text << "(" << dtype_name(type) << ", " << elements;
    if (op != kNoOp) {
      text << ", " << op_name(static_cast<OpKind>(op));
    }
    if (root >= 0) {
      text << ", root " << root;
    }
    text << ")";
  }
  return text.str();
}

uint64_t CallLog::started(const Started& what) {
  std::lock_guard<std::mutex> guard(mutex_);
  entries_[count_ % entries_.size()] = {what, Clock::now(), {}, Entry::kRunning};
  return count_++;
}

void CallLog::ended(uint64_t number, bool is_success) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (number + entries_.size() < count_ + 1) {
    return; // a later call has replaced the entry
  }
  auto& entry = entries_[number % entries_.size()];
  entry.end = Clock::now();
  entry.state = is_success ? Entry::kComplete : Entry::kFailed;
}

Started CallLog::last() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return count_ == 0 ? Started{} : entries_[(count_ - 1) % entries_.size()].what;
}

std::string CallLog::text() const {
  using Seconds = std::chrono::duration<double>;
  std::lock_guard<std::mutex> guard(mutex_);
  const auto now = Clock::now();
  std::ostringstream text;
  text.precision(3);
  text << std::fixed;
  for (uint64_t number = count_ - std::min<uint64_t>(count_, entries_.size()); number < count_; ++number) {
    const auto& entry = entries_[number % entries_.size()];
    text << "  " << Seconds(now - entry.begin).count() << " s ago: " << entry.what.describe();
    if (entry.state == Entry::kRunning) {
      text << ", not complete\n";
    } else {
      text << ", " << (entry.state == Entry::kComplete ? "complete" : "failed") << " after "
           << Seconds(entry.end - entry.begin).count() << " s\n";
    }
  }
  return text.str();
}

} // namespace ccl_backend
