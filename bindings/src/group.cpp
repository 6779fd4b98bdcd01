#include "group.hpp"

#include "completions.hpp"
#include "engine.hpp"
#include "store_barriers.hpp"
#include "transport.hpp"
#include "watchdog.hpp"

#include <algorithm>
#include <iostream>
#include <thread>
#include <unistd.h>

namespace ccl_backend {
namespace {

using std::chrono::seconds;

// How long a rank that gives up waits for the other ranks' reports. Ranks without a lifeline read the store every
// second.
constexpr seconds kReports{3};
// The same where another rank has given up first, so that all ranks know already.
constexpr seconds kReportsAfterFailure{1};
// What a rank has sent before it ended may still arrive for this long.
constexpr seconds kInTransit{2};
// The calls of other ranks, which they send every 20 ms.
constexpr Milliseconds kCallsOnTheirWay{200};
// For the connections of the lifeline, once all ranks have joined.
constexpr seconds kConnectLifeline{60};

// Of a call in which every rank still has to take part.
constexpr Needs kAllRanks{0, UINT64_MAX};

// Gives the group its own key prefix in the store. A group that is created again over the same store would otherwise
// read the keys of the previous one. Each rank counts for itself: all ranks create the group equally often.
GroupOptions with_own_keys(GroupOptions options) {
  const auto count = options.store->add(c10::str("ccl/times/", options.rank), 1);
  options.store = c10::make_intrusive<c10d::PrefixStore>(c10::str("ccl/", count), options.store);
  return options;
}

} // namespace

Group::Group(GroupOptions given)
    : options(with_own_keys(std::move(given))),
      process(getpid()),
      timeout_(options.timeout.count()),
      reports_(std::make_shared<PeerReports>(options)) {
  const TimeLimit limit(options.timeout);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].callbacks = std::make_shared<OrderedCallbacks>(static_cast<int>(lane) + 1);
  }
  check_reach(options.reached(), options.where());
  join(options, *options.store, limit);
  if (options.size > 1) {
    const auto deadline = std::min(Clock::now() + kConnectLifeline, limit.deadline);
    lifeline_ = std::make_shared<Lifeline>(
        *options.store, options.rank, options.size, deadline, [reports = reports_, calls = calls_] {
          Completions::instance().post([=] { reports->answer(calls->last().describe()); });
        });
  }
  try {
    Engine::instance().start();
    lanes_[0].paths = open_paths(options, options.store, limit, [&] { require_peers(limit.began); });
  } catch (...) {
    report_failure(); // else the other ranks would take this for an orderly end
    throw;
  }
  mailbox_ = std::make_unique<Mailbox>(*lanes_[0].paths.communicator, options.size);
}

Group::~Group() {
  close();
}

void Group::close() noexcept {
  if (closed_.exchange(true)) {
    return;
  }
  try {
    require_own_process("leaving");
    // No call starts from here on. Those that another thread has just started must not be polled any more.
    if (Watchdog::instance().has(*this)) {
      Watchdog::instance().abort(shared_from_this(), c10::str("ccl: the group was closed, ", options.where()));
    }
    const auto guard = Engine::instance().lock();
    Remains remains;
    for (auto& lane : lanes_) {
      remains.add(std::exchange(lane.paths, {}));
    }
    remains.mailbox = std::move(mailbox_);
    const bool is_idle = !is_broken() && !(remains.mailbox && remains.mailbox->is_busy());
    if (!remains.communicators.empty()) {
      retire(std::move(remains), is_idle);
    }
  } catch (const std::exception&) { // a forked child, the process is ending, or oneCCL is blocked
    for (auto& lane : lanes_) {
      (void)lane.paths.communicator.release();
      (void)lane.paths.across.release();
    }
    (void)mailbox_.release();
  }
  if (getpid() != process) {
    return; // a thread of the parent may have held the mutex during the fork
  }
  // Destroyed last, and without the lock: this reports to the other ranks that this rank has left.
  std::shared_ptr<Lifeline> lifeline;
  std::lock_guard<std::mutex> guard(mutex_);
  lifeline.swap(lifeline_);
}

const ccl::communicator& Group::communicator(int lane) {
  const auto& communicator = lanes_[lane].paths.communicator;
  if (!communicator) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", options.where(), " was closed during the call"));
  }
  return *communicator;
}

Mailbox& Group::mailbox() {
  (void)communicator(0);
  return *mailbox_;
}

int Group::open_lane() {
  const int depth = std::min(Completions::depth(), static_cast<int>(lanes_.size()) - 1);
  if (depth == 0) {
    return 0;
  }
  auto& lane = lanes_[depth];
  std::lock_guard<std::mutex> opening(lane.opening);
  {
    const auto guard = Engine::instance().lock();
    if (lane.paths.communicator) {
      return depth;
    }
  }
  const TimeLimit limit(timeout());
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("lane/", depth), reports_->store());
  join(options, *store, limit, [&] {
    require_usable("a callback's call");
    const auto reason = why_never(limit.began, kAllRanks);
    if (!reason.empty()) {
      C10_THROW_ERROR(
          DistBackendError, c10::str("ccl: a callback's call cannot start on ", options.where(), ": ", reason));
    }
  });
  auto paths = open_paths(options, store, limit, [&] { require_peers(limit.began); });
  const auto guard = Engine::instance().lock();
  if (closed_) { // during the call: `close` did not see this communicator
    Remains late;
    late.add(std::move(paths));
    retire(std::move(late), false);
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", options.where(), " was closed during the call"));
  }
  lane.paths = std::move(paths);
  return depth;
}

void Group::announce(const Started& call, const Sizes& sizes) {
  if (const auto line = lifeline()) {
    line->add(call, sizes);
  }
}

void Group::withdraw(int lane, uint64_t sequence) noexcept {
  if (const auto line = lifeline()) {
    line->withdraw(lane, sequence);
  }
}

std::shared_ptr<Lifeline> Group::lifeline() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return lifeline_;
}

std::optional<Departure> Group::failure() const {
  const auto line = lifeline();
  return line ? line->failure() : std::nullopt;
}

std::string Group::difference() const {
  const auto line = lifeline();
  const auto found = line ? line->difference() : std::nullopt;
  return found ? c10::str(
                     "the ranks call different collectives: ",
                     found->calls.describe(options.global_rank(found->previous), options.global_rank(found->rank)))
               : "";
}

void Group::mark_broken(const std::string& reason) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!broken_) {
    reason_ = reason;
    broken_.store(true, std::memory_order_release);
  }
}

bool Group::has_error() const {
  return is_broken() || failure() || !difference().empty();
}

std::string Group::reason() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return reason_;
}

void Group::require_own_process(const char* operation) const {
  if (getpid() != process) { // shared memory and connections belong to the parent
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " in a forked child, ", options.where(),
                 ": only the process that created a group can use it"));
  }
}

void Group::require_usable(const char* operation) const {
  require_own_process(operation);
  if (is_broken()) {
    const auto why = reason();
    const auto text = difference();
    const bool is_new = why.find(text) == std::string::npos;
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " on a group that failed before, ", options.where(), ": ", why,
                 is_new ? "; " + text : ""));
  }
  if (closed_) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", operation, " on a group that was shut down"));
  }
  const auto line = lifeline();
  if (line && line->has_difference()) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " on a group that failed, ", options.where(), ": ", difference()));
  }
  const auto gone = line ? line->failure() : std::nullopt;
  if (gone && gone->kind == Departure::Kind::kFailed) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " on a group that rank ", options.global_rank(gone->rank), " has given up, ",
                 options.where()));
  }
}

std::string Group::why_never(Clock::time_point started, const Needs& needs) const {
  if (auto text = difference(); !text.empty()) {
    return text;
  }
  const auto line = lifeline();
  auto gone = line ? line->failure() : std::nullopt;
  if (line && !gone) {
    gone = line->find_left(needs);
  }
  if (!gone) {
    return "";
  }
  const auto rank = options.global_rank(gone->rank);
  const auto over = std::max(gone->noticed, started) + kInTransit;
  const bool is_over = Clock::now() >= over;
  switch (gone->kind) {
    case Departure::Kind::kFailed:
      return c10::str("rank ", rank, " has given the group up");
    case Departure::Kind::kLost:
      return is_over ? c10::str("rank ", rank, " has ended, or its host cannot be reached any more") : "";
    case Departure::Kind::kLeft:
      // What has arrived is only received while the engine polls, which a group that is connecting can prevent.
      return Engine::instance().last_poll() >= over ? c10::str("rank ", rank, " has left the group") : "";
  }
  return "";
}

void Group::require_peers(Clock::time_point started) const {
  const auto reason = why_never(started, kAllRanks);
  if (!reason.empty()) {
    C10_THROW_ERROR(DistBackendError, reason);
  }
}

uint64_t Group::started(const Started& what) {
  return calls_->started(what);
}

void Group::print_calls(const std::string& reason) {
  if (!printed_.exchange(true)) {
    std::cerr << c10::str(reason, "\nlast calls of ", options.where(), ":\n", calls_->text()) << std::flush;
  }
}

void Group::report_failure() noexcept {
  if (const auto line = lifeline()) {
    line->fail();
  }
}

void Group::publish_last_call() noexcept {
  reports_->publish(calls_->last().describe());
}

std::string Group::find_difference() noexcept {
  for (const auto end = Clock::now() + kCallsOnTheirWay; Clock::now() < end && lifeline() && difference().empty();) {
    std::this_thread::sleep_for(Milliseconds(5));
  }
  return difference();
}

PeerReports::Calls Group::compare_with_peers(Clock::time_point limit) noexcept {
  if (auto text = find_difference(); !text.empty()) {
    // Not here: a store that does not answer must not delay an error that is known.
    Completions::instance().post([reports = reports_, calls = calls_] { reports->publish(calls->last().describe()); });
    return {reason().find(text) == std::string::npos ? text : "", true};
  }
  const auto gone = failure();
  const bool peer_failed = gone && gone->kind == Departure::Kind::kFailed;
  const auto now = Clock::now();
  const auto left = std::min<Clock::duration>(limit - now, peer_failed ? kReportsAfterFailure : kReports);
  const auto wait = std::max(Milliseconds(0), std::chrono::duration_cast<Milliseconds>(left));
  return reports_->compare(calls_->last().describe(), wait);
}

std::string Group::find_reported_failure() noexcept {
  return reports_->find_failure();
}

void Group::monitored_barrier(Milliseconds limit, bool wait_for_all) {
  ccl_backend::monitored_barrier(options, ++barriers_, limit, wait_for_all);
}

} // namespace ccl_backend
