#include "peer_reports.hpp"

#include "bounded.hpp"
#include "releases.hpp"

#include <map>
#include <sstream>
#include <thread>

namespace ccl_backend {
namespace {

constexpr const char* kGaveUp = "gave-up";

std::string last_key(int rank) {
  return c10::str("last/", rank);
}

} // namespace

c10::intrusive_ptr<c10d::Store> PeerReports::store() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!store_) {
    store_ = connect_again(group_.store);
  }
  return store_;
}

void PeerReports::write(const std::string& last_call) {
  const auto shared = store();
  put_text(*shared, last_key(group_.rank), last_call);
  put_text(*shared, kGaveUp, std::to_string(group_.global_rank(group_.rank)));
}

PeerReports::Calls PeerReports::read_all(Milliseconds limit) {
  const auto shared = store();
  const auto deadline = Clock::now() + limit;
  std::ostringstream text;
  Calls calls;
  std::map<std::string, std::string> by_number; // "#12": "#12 all_reduce(float32, 100)"
  for (int rank = 0; rank < group_.size; ++rank) {
    const auto key = last_key(rank);
    bool exists = shared->check({key});
    while (!exists && Clock::now() < deadline) { // the store's own wait logs a warning
      std::this_thread::sleep_for(Milliseconds(50));
      exists = shared->check({key});
    }
    text << (rank == 0 ? "" : "; ") << "rank " << group_.global_rank(rank);
    if (exists) {
      const auto call = get_text(*shared, key);
      text << " is at " << call;
      const auto number = call.substr(0, call.find(' ', call.find('#')));
      calls.differ = calls.differ || by_number.emplace(number, call).first->second != call;
    } else {
      text << " does not answer: it has ended, or waits for nothing in this group";
    }
  }
  calls.text = text.str();
  return calls;
}

void PeerReports::publish(const std::string& last_call) noexcept {
  try {
    write(last_call);
  } catch (const std::exception&) { // the store ended with rank 0
  }
}

void PeerReports::answer(const std::string& last_call) noexcept {
  try {
    put_text(*store(), last_key(group_.rank), last_call);
  } catch (const std::exception&) { // the store ended with rank 0
  }
}

PeerReports::Calls PeerReports::compare(const std::string& last_call, Milliseconds limit) noexcept {
  try {
    const auto calls = run_bounded<Calls>(
        [self = shared_from_this(), last_call, limit] {
          self->write(last_call);
          return self->read_all(limit);
        },
        TimeLimit(limit + std::chrono::seconds(1)));
    if (calls) {
      return *calls;
    }
  } catch (const std::exception&) { // the store ended with rank 0
  }
  return {"the store does not answer, so the other ranks are unknown"};
}

std::string PeerReports::find_failure() noexcept {
  try {
    const auto shared = store();
    if (shared->check({kGaveUp})) {
      return c10::str("rank ", get_text(*shared, kGaveUp), " has given the group up");
    }
  } catch (const std::exception&) { // the operation ends at its deadline
  }
  return "";
}

} // namespace ccl_backend
