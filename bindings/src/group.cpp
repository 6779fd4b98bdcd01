#include "group.hpp"

#include "completions.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "rendezvous.hpp"
#include "transport.hpp"
#include "watchdog.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <future>
#include <iostream>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace ccl_backend {
namespace {

using std::chrono::seconds;

// How long a rank that gives up waits for what the others say: without a lifeline they look every second.
constexpr seconds kHearOut{3};
// The same where another rank has given up before, and told the others.
constexpr seconds kHearOutTold{1};
constexpr Milliseconds kLookAgain{50};
constexpr Milliseconds kLookForJoined{10};
// What a rank has sent before it ended may still be on its way for this long.
constexpr seconds kLastWords{2};
// For the connections of the lifeline, once all ranks are there.
constexpr seconds kTieLifeline{60};
constexpr const char* kGaveUp = "gave-up";
constexpr const char* kAllJoined = "all-joined";

std::atomic<int>& opening_lanes() {
  static auto* const count = new std::atomic<int>(0);
  return *count;
}

std::string joined_key(int rank) {
  return c10::str("joined/", rank);
}

std::string last_key(int rank) {
  return c10::str("last/", rank);
}

// A view of the store whose keys belong to this making of the group: one that is made again over the same store
// would find the keys of the one before. Each rank counts for itself; all make the group equally often.
c10::intrusive_ptr<c10d::Store> of_this_time(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const auto time = store->add(c10::str("ccl/times/", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("ccl/", time), store);
}

GroupOptions with_own_keys(GroupOptions options) {
  options.store = of_this_time(options.store, options.rank);
  return options;
}

Milliseconds left_until(Clock::time_point deadline) {
  return std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
}

// Runs `body` in a thread of its own; false if it did not return in time, then it is left alone, as it is where `look`,
// which is called all the time, raises.
template <typename Result>
bool run_bounded(
    std::function<Result()> body, Milliseconds limit, Result& result, const std::function<void()>& look = [] {}) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  std::thread([promise, body = std::move(body)] {
    try {
      promise->set_value(body());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto deadline = Clock::now() + limit;
  while (future.wait_for(std::min(kLookAgain, left_until(deadline))) != std::future_status::ready) {
    if (Clock::now() >= deadline) {
      return false;
    }
    look();
  }
  result = future.get();
  return true;
}

// A thread's attempt to make a communicator, which its caller may give up.
class Attempt {
 public:
  // With the engine locked. Raises if it was given up before.
  void begin() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_abandoned_) {
      C10_THROW_ERROR(DistBackendError, "the ranks did not finish connecting in time");
    }
    is_inside_ = true;
  }
  // The thread has come back from oneCCL. False if the attempt was given up.
  bool end() {
    std::lock_guard<std::mutex> guard(mutex_);
    is_over_ = true;
    if (is_abandoned_) {
      Engine::instance().count_left_behind(-1);
    }
    return !is_abandoned_;
  }
  void abandon() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (is_over_ || is_abandoned_) {
      return;
    }
    is_abandoned_ = true;
    if (is_inside_) {
      Engine::instance().count_left_behind(1);
    }
  }

 private:
  std::mutex mutex_;
  bool is_inside_ = false;
  bool is_over_ = false;
  bool is_abandoned_ = false;
};

} // namespace

Group::Group(GroupOptions given)
    : options(with_own_keys(std::move(given))), process(getpid()), timeout_(options.timeout.count()) {
  const auto deadline = Clock::now() + options.timeout;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].callbacks = std::make_shared<OrderedCallbacks>(static_cast<int>(lane) + 1);
  }
  check_reach(options.global_ranks, where());
  join(*options.store, deadline);
  if (options.size > 1) {
    const auto limit = std::min(Clock::now() + kTieLifeline, deadline);
    lifeline_ = std::make_shared<Lifeline>(*options.store, options.rank, options.size, limit);
  }
  try {
    lanes_[0].communicator = connect(options.store, deadline);
  } catch (...) {
    tell_failure(); // else the others would take it for an orderly end
    throw;
  }
  mailbox_ = std::make_unique<Mailbox>(*lanes_[0].communicator, options.size);
}

void Group::join(c10d::Store& store, Clock::time_point deadline, const std::function<void()>& look) {
  store.set(joined_key(options.rank), "");
  if (store.add("joined", 1) == options.size) {
    store.set(kAllJoined, "");
  }
  while (look && Clock::now() < deadline && !store.check({kAllJoined})) {
    look();
    std::this_thread::sleep_for(kLookForJoined);
  }
  try {
    store.wait({kAllJoined}, left_until(deadline));
  } catch (const std::exception& error) {
    std::string missing;
    for (int rank = 0; rank < options.size; ++rank) {
      if (!store.check({joined_key(rank)})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    if (missing.empty()) { // the store failed, not a rank
      throw;
    }
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: rank ", missing, " did not join within ", timeout().count() / 1000.0, " s: ", where()));
  }
}

std::unique_ptr<ccl::communicator> Group::connect(
    const c10::intrusive_ptr<c10d::Store>& store, Clock::time_point deadline) {
  // The last step of oneCCL's connecting waits for the peers with no limit: a thread that can be left behind does it.
  using Made = std::shared_ptr<ccl::communicator>;
  auto exchange = std::make_shared<StoreExchange>(store, deadline);
  auto attempt = std::make_shared<Attempt>();
  const std::function<Made()> make = [exchange, attempt, size = options.size, rank = options.rank,
                                      ranks = options.global_ranks] {
    const auto guard = Engine::instance().lock();
    attempt->begin();
    Made made;
    try {
      initialize_library();
      made = std::make_shared<ccl::communicator>(ccl::create_communicator(size, rank, exchange));
      communicator_made(ranks);
    } catch (...) {
      (void)attempt->end();
      throw;
    }
    exchange->close();
    if (!attempt->end()) { // too late: the communicator is nobody's
      Remains remains;
      remains.communicators.push_back(std::make_unique<ccl::communicator>(std::move(*made)));
      (void)retire(std::move(remains), false);
      C10_THROW_ERROR(DistBackendError, "the ranks finished connecting too late");
    }
    return made;
  };
  const auto began = Clock::now();
  const auto look = [&] {
    const auto reason = why_never(began, UINT64_MAX);
    if (!reason.empty()) {
      C10_THROW_ERROR(DistBackendError, reason);
    }
  };
  Made made;
  try {
    if (!run_bounded<Made>(make, left_until(deadline), made, look)) {
      C10_THROW_ERROR(DistBackendError, c10::str("no answer within ", timeout().count() / 1000.0, " s"));
    }
  } catch (const std::exception& error) {
    exchange->abandon();
    attempt->abandon();
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: the ranks could not connect, ", where(), ": ", message_of(error)));
  }
  return std::make_unique<ccl::communicator>(std::move(*made));
}

Group::~Group() {
  close();
}

void Group::close() noexcept {
  if (closed_.exchange(true)) {
    return;
  }
  std::vector<OperationPtr> released;
  try {
    require_own_process("leaving");
    const bool is_quiet = !is_broken() && !Watchdog::instance().has(*this);
    const auto guard = Engine::instance().lock();
    Remains remains;
    for (auto& lane : lanes_) {
      if (lane.communicator) {
        remains.communicators.push_back(std::move(lane.communicator));
      }
    }
    remains.mailbox = std::move(mailbox_);
    const bool is_idle = is_quiet && !(remains.mailbox && remains.mailbox->is_busy());
    if (!remains.communicators.empty() && retire(std::move(remains), is_idle)) {
      released = Engine::instance().take_kept();
    }
  } catch (const std::exception&) { // a forked child, the end of the process, or oneCCL is of no use any more
    for (auto& lane : lanes_) {
      (void)lane.communicator.release();
    }
    (void)mailbox_.release();
  }
  if (!released.empty()) {
    Completions::instance().post([released = std::move(released)] {});
  }
  std::shared_ptr<Lifeline> lifeline; // goes without the lock, and last: it tells the others that this rank has left
  std::lock_guard<std::mutex> guard(mutex_);
  lifeline.swap(lifeline_);
}

const ccl::communicator& Group::communicator(int lane) {
  const auto& communicator = lanes_[lane].communicator;
  if (!communicator) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", where(), " was left meanwhile"));
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
    if (lane.communicator) {
      return depth;
    }
  }
  struct Counted {
    Counted() {
      ++opening_lanes();
    }
    ~Counted() {
      --opening_lanes();
    }
  } const counted;
  const auto began = Clock::now();
  const auto deadline = began + timeout();
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("lane/", depth), private_store());
  join(*store, deadline, [&] {
    require_usable("a callback's call");
    const auto reason = why_never(began, UINT64_MAX);
    if (!reason.empty()) {
      C10_THROW_ERROR(DistBackendError, c10::str("ccl: a callback's call cannot start on ", where(), ": ", reason));
    }
  });
  auto made = connect(store, deadline);
  std::vector<OperationPtr> released; // goes after the lock
  const auto guard = Engine::instance().lock();
  if (closed_) { // meanwhile: nobody else would retire it
    Remains late;
    late.communicators.push_back(std::move(made));
    if (retire(std::move(late), false)) {
      released = Engine::instance().take_kept();
    }
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", where(), " was left meanwhile"));
  }
  lane.communicator = std::move(made);
  return depth;
}

bool Group::is_opening_lane() {
  return opening_lanes().load() > 0;
}

uint64_t Group::next_sequence(int lane) {
  const auto sequence = ++lanes_[lane].sequence;
  if (lane == 0) {
    if (const auto line = lifeline()) {
      line->set_sequence(sequence);
    }
  }
  return sequence;
}

std::string Group::where() const {
  return c10::str("group ", options.name, ", rank ", options.rank, " of ", options.size);
}

std::shared_ptr<Lifeline> Group::lifeline() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return lifeline_;
}

std::optional<Departure> Group::departure() const {
  const auto line = lifeline();
  return line ? line->departure() : std::nullopt;
}

int64_t Group::global_rank(int rank) const {
  return options.global_ranks.empty() ? rank : options.global_ranks[rank];
}

void Group::mark_broken(const std::string& reason) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!broken_) {
    reason_ = reason;
    broken_.store(true, std::memory_order_release);
  }
}

bool Group::has_error() const {
  const auto gone = departure();
  return is_broken() || (gone && gone->kind != Departure::Kind::kLeft);
}

std::string Group::reason() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return reason_;
}

void Group::require_own_process(const char* operation) const {
  if (getpid() != process) { // its shared memory and its connections are still the parent's
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " in a forked child, ", where(), ": only the process that made a group can use it"));
  }
}

void Group::require_usable(const char* operation) const {
  require_own_process(operation);
  if (is_broken()) {
    C10_THROW_ERROR(
        DistBackendError, c10::str("ccl: ", operation, " on a group that failed before, ", where(), ": ", reason()));
  }
  if (closed_) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: ", operation, " on a group that was shut down"));
  }
  const auto gone = departure();
  if (gone && gone->kind == Departure::Kind::kFailed) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " on a group that rank ", global_rank(gone->rank), " has given up, ", where()));
  }
}

std::string Group::why_never(Clock::time_point started, std::optional<uint64_t> sequence) const {
  const auto gone = departure();
  if (!gone) {
    return "";
  }
  const auto rank = global_rank(gone->rank);
  const bool is_over = Clock::now() >= std::max(gone->noticed, started) + kLastWords;
  switch (gone->kind) {
    case Departure::Kind::kFailed:
      return c10::str("rank ", rank, " has given the group up");
    case Departure::Kind::kLost:
      return is_over ? c10::str("rank ", rank, " has ended, or its host cannot be reached any more") : "";
    case Departure::Kind::kLeft:
      // What it took part in may still be on its way between others, and others may exchange messages.
      return is_over && sequence && *sequence > gone->sequence ? c10::str("rank ", rank, " has left the group") : "";
  }
  return "";
}

uint64_t Group::started(const Started& what) {
  return calls_.started(what);
}

void Group::print_calls(const std::string& reason) {
  if (!printed_.exchange(true)) {
    std::cerr << c10::str(reason, "\nlast calls of ", where(), ":\n", calls_.text()) << std::flush;
  }
}

void Group::tell_failure() noexcept {
  if (const auto line = lifeline()) {
    line->fail();
  }
}

c10::intrusive_ptr<c10d::Store> Group::private_store() {
  std::lock_guard<std::mutex> guard(store_mutex_);
  if (!private_store_) {
    // The group's own may be held by a thread of the user's that waits for a key.
    private_store_ = options.store->clone();
  }
  return private_store_;
}

void Group::publish(c10d::Store& store) {
  store.set(last_key(options.rank), calls_.last().describe());
}

void Group::publish_quietly() noexcept {
  try {
    const auto store = private_store();
    publish(*store);
    store->set(kGaveUp, std::to_string(options.rank));
  } catch (const std::exception&) { // it may be gone with rank 0
  }
}

std::string Group::read_peers(c10d::Store& store, seconds limit) {
  const auto deadline = Clock::now() + limit;
  std::ostringstream text;
  for (int rank = 0; rank < options.size; ++rank) {
    const auto key = last_key(rank);
    bool is_there = store.check({key});
    while (!is_there && Clock::now() < deadline) { // the store's own wait would log that it took long
      std::this_thread::sleep_for(kLookAgain);
      is_there = store.check({key});
    }
    text << (rank == 0 ? "" : "; ") << "rank " << rank;
    if (is_there) {
      text << " is at " << store.get_to_str(key);
    } else {
      text << " does not answer: it has ended, or waits for nothing in this group";
    }
  }
  return text.str();
}

std::string Group::compare_with_peers() noexcept {
  std::string text;
  try {
    const auto gone = departure();
    const auto limit = gone && gone->kind == Departure::Kind::kFailed ? kHearOutTold : kHearOut;
    const std::function<std::string()> ask = [self = shared_from_this(), limit] {
      const auto store = self->private_store();
      self->publish(*store);
      store->set(kGaveUp, std::to_string(self->options.rank));
      return self->read_peers(*store, limit);
    };
    if (run_bounded(ask, limit + seconds(1), text)) {
      return text;
    }
  } catch (const std::exception&) {
  }
  return "the store does not answer, so the other ranks are unknown";
}

std::string Group::ask_peers() noexcept {
  try {
    const auto store = private_store();
    if (store->check({kGaveUp})) {
      return c10::str("rank ", store->get_to_str(kGaveUp), " has given the group up");
    }
  } catch (const std::exception&) { // the deadline will come
  }
  return "";
}

void Group::monitored_barrier(Milliseconds limit, bool wait_for_all) {
  const auto prefix = c10::str("barrier/", ++barriers_, "/");
  const auto outcome_key = prefix + "outcome";
  auto& store = *options.store;
  const auto deadline = Clock::now() + limit;
  const auto took_too_long = [&](const std::string& ranks) {
    return c10::str(
        "ccl: monitored_barrier: rank ", ranks, " did not arrive within ", limit.count() / 1000.0, " s, ", where());
  };
  const auto wait = [&](const std::string& key, Clock::time_point until) {
    try {
      store.wait({key}, left_until(until));
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (options.rank != 0) {
    store.set(prefix + std::to_string(options.rank), "");
    // Rank 0 may come late itself, and then waits for as long.
    if (!wait(outcome_key, deadline + limit)) {
      C10_THROW_ERROR(DistBackendError, took_too_long("0"));
    }
  } else {
    std::string missing;
    for (int rank = 1; rank < options.size && limit.count() > 0 && (missing.empty() || wait_for_all); ++rank) {
      if (!wait(prefix + std::to_string(rank), deadline)) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(global_rank(rank));
      }
    }
    if (limit.count() == 0) { // gloo's words
      store.set(outcome_key, c10::str("ccl: Rank 0 timed out in monitoredBarrier after 0 ms, ", where()));
    } else {
      store.set(outcome_key, missing.empty() ? "" : took_too_long(missing));
    }
  }
  const auto outcome = store.get_to_str(outcome_key);
  if (!outcome.empty()) {
    C10_THROW_ERROR(DistBackendError, outcome);
  }
}

} // namespace ccl_backend
