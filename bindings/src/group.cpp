#include "group.hpp"

#include "engine.hpp"
#include "errors.hpp"
#include "initialize.hpp"
#include "reach.hpp"
#include "rendezvous.hpp"

#include <future>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace ccl_backend {
namespace {

// How long a rank that gives up waits for what the others say: they look every second.
constexpr std::chrono::seconds kHearOut{3};
constexpr Milliseconds kLookAgain{50};
// What a rank has sent before it ended may still be on its way for this long. A rank that left in order may have
// completed a large collective that others are still at.
constexpr std::chrono::seconds kLastWords{2};
constexpr std::chrono::seconds kLastWordsInOrder{30};
constexpr std::chrono::seconds kLastWordsOfFailed{1};
// For the connections of the lifeline, once all ranks are there.
constexpr std::chrono::seconds kTieLifeline{60};
constexpr const char* kGaveUp = "ccl/gave-up";

std::string joined_key(int rank) {
  return c10::str("ccl/joined/", rank);
}

std::string last_key(int rank) {
  return c10::str("ccl/last/", rank);
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

} // namespace

std::string Started::describe() const {
  if (sequence == 0) {
    return "nothing";
  }
  std::ostringstream text;
  text << "#" << sequence << " " << name;
  if (elements >= 0) {
    text << "(" << c10::getDtypeNames(type).first << ", " << elements << ")";
  }
  return text.str();
}

Group::Group(GroupOptions given) : options(std::move(given)), process(getpid()) {
  const auto deadline = Clock::now() + options.timeout;
  check_reach(options.global_ranks, where());
  join(deadline);
  if (options.size > 1) {
    const auto limit = std::min(Clock::now() + kTieLifeline, deadline);
    lifeline_ = std::make_unique<Lifeline>(*options.store, options.rank, options.size, limit);
  }
  communicator_ = connect(deadline);
  communicator_made(options.global_ranks);
  mailbox_ = std::make_unique<Mailbox>(*communicator_, options.size);
}

void Group::join(Clock::time_point deadline) {
  options.store->set(joined_key(options.rank), "");
  for (int rank = 0; rank < options.size; ++rank) {
    try {
      options.store->wait({joined_key(rank)}, left_until(deadline));
    } catch (const std::exception& error) {
      std::string missing;
      for (int other = rank; other < options.size; ++other) {
        if (!options.store->check({joined_key(other)})) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(other);
        }
      }
      C10_THROW_ERROR(
          DistBackendError,
          c10::str("ccl: rank ", missing, " did not join within ", options.timeout.count() / 1000.0, " s: ", where()));
    }
  }
}

std::unique_ptr<ccl::communicator> Group::connect(Clock::time_point deadline) {
  // The last step of oneCCL's connecting waits for the peers with no limit: a thread that can be left behind does it.
  using Made = std::shared_ptr<ccl::communicator>;
  const int size = options.size;
  const int rank = options.rank;
  auto exchange = std::make_shared<StoreExchange>(options.store, deadline);
  const std::function<Made()> make = [exchange, size, rank] {
    const auto guard = Engine::instance().lock();
    initialize_library();
    auto made = std::make_shared<ccl::communicator>(ccl::create_communicator(size, rank, exchange));
    exchange->close();
    return made;
  };
  const auto began = Clock::now();
  const auto look = [&] {
    const auto reason = why_never(began, false);
    if (!reason.empty()) {
      Engine::instance().mark_stuck();
      C10_THROW_ERROR(DistBackendError, reason);
    }
  };
  Made made;
  try {
    if (!run_bounded<Made>(make, left_until(deadline), made, look)) {
      Engine::instance().mark_stuck();
      C10_THROW_ERROR(DistBackendError, c10::str("no answer within ", options.timeout.count() / 1000.0, " s"));
    }
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, c10::str("ccl: the ranks could not connect, ", where(), ": ", message_of(error)));
  }
  return std::make_unique<ccl::communicator>(std::move(*made));
}

Group::~Group() {
  if (!communicator_) {
    return;
  }
  if (is_broken() || getpid() != process || mailbox_->is_waiting()) {
    (void)communicator_.release();
    (void)mailbox_.release();
    return;
  }
  try {
    const auto guard = Engine::instance().lock();
    communicator_.reset();
    communicator_gone();
  } catch (const std::exception& error) {
    TORCH_WARN("ccl: leaving ", where(), ": ", message_of(error));
  }
}

std::string Group::where() const {
  return c10::str("group ", options.name, ", rank ", options.rank, " of ", options.size);
}

bool Group::mark_broken(const std::string& reason) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (broken_) {
    return false;
  }
  reason_ = reason;
  broken_.store(true, std::memory_order_release);
  if (lifeline_) {
    lifeline_->fail();
  }
  return true;
}

std::string Group::reason() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return reason_;
}

void Group::require_usable(const char* operation) const {
  if (getpid() != process) { // its shared memory and its connections are still the parent's
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: ", operation, " in a forked child, ", where(), ": only the process that made a group can use it"));
  }
  if (is_broken()) {
    C10_THROW_ERROR(
        DistBackendError, c10::str("ccl: ", operation, " on a group that failed before, ", where(), ": ", reason()));
  }
}

std::string Group::why_never(Clock::time_point started, bool is_message) const {
  using Kind = Departure::Kind;
  const auto gone = lifeline_ ? lifeline_->departure() : std::nullopt;
  if (!gone || (gone->kind == Kind::kLeft && is_message)) { // others may still exchange messages
    return "";
  }
  const auto last_words = gone->kind == Kind::kLeft ? kLastWordsInOrder
      : gone->kind == Kind::kFailed                 ? kLastWordsOfFailed
                                                    : kLastWords;
  if (Clock::now() < std::max(gone->noticed, started) + last_words) {
    return "";
  }
  const auto rank = options.global_ranks.empty() ? gone->rank : options.global_ranks[gone->rank];
  const char* const what = gone->kind == Kind::kLeft ? " has left the group"
      : gone->kind == Kind::kFailed                  ? " has given the group up"
                                                     : " has ended, or its host cannot be reached any more";
  return c10::str("rank ", rank, what);
}

void Group::started(const Started& what) {
  std::lock_guard<std::mutex> guard(mutex_);
  last_ = what;
}

c10d::Store& Group::private_store() {
  std::lock_guard<std::mutex> guard(store_mutex_);
  if (!private_store_) {
    // The group's own may be held by a thread of the user's that waits for a key.
    private_store_ = options.store->clone();
  }
  return *private_store_;
}

void Group::publish(c10d::Store& store) {
  std::string last;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    last = last_.describe();
  }
  store.set(last_key(options.rank), last);
}

std::string Group::read_peers(c10d::Store& store) {
  const auto deadline = Clock::now() + kHearOut;
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

std::string Group::compare_with_peers(const std::shared_ptr<Group>& self) noexcept {
  std::string text;
  try {
    const std::function<std::string()> ask = [self] {
      auto& store = self->private_store();
      self->publish(store);
      store.set(kGaveUp, std::to_string(self->options.rank));
      return self->read_peers(store);
    };
    if (run_bounded(ask, kHearOut + std::chrono::seconds(2), text)) {
      return text;
    }
  } catch (const std::exception&) {
  }
  return "the store does not answer, so the other ranks are unknown";
}

void Group::ask_peers() noexcept {
  try {
    auto& store = private_store();
    if (store.check({kGaveUp})) {
      publish(store);
      const auto rank = store.get_to_str(kGaveUp);
      mark_broken(c10::str("rank ", rank, " gave up waiting for this group; ", read_peers(store)));
    }
  } catch (const std::exception&) { // the deadline will come
  }
}

} // namespace ccl_backend
