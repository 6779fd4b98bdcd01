#include "transport.hpp"

#include "completions.hpp"
#include "engine.hpp"
#include "oneccl_private.hpp"
#include "rendezvous.hpp"
#include "transfer.hpp"
#include "types.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <new>
#include <sstream>

namespace ccl_backend {
namespace {

constexpr const char* kChangedVariable = " changed to be ";

class Capture {
 public:
  explicit Capture(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(kept_.rdbuf())) {}

  ~Capture() {
    stream_.rdbuf(before_);
    for (std::string line; std::getline(kept_, line);) {
      if (line.find(kChangedVariable) == std::string::npos) {
        std::cerr << line << '\n';
      }
    }
  }

 private:
  std::ostream& stream_;
  std::stringstream kept_;
  std::streambuf* before_;
};

struct Transport {
  std::mutex mutex; // guards `ranks` and `communicators`, which check_reach reads without the engine's lock
  std::vector<int64_t> ranks; // of the first communicator
  size_t communicators = 0; // of groups
  // While there are communicators: one of this rank alone, and a message that this rank never sends to itself. Testing
  // the message makes oneCCL poll.
  std::unique_ptr<ccl::communicator> own;
  Transfer parked;
  std::vector<Remains> given_up;
};

Transport& transport() {
  static auto* const transport = new Transport();
  return *transport;
}

size_t count_given_up() {
  size_t count = 0;
  for (const auto& remains : transport().given_up) {
    count += remains.communicators.size();
  }
  return count;
}

void count_down(size_t communicators) {
  std::lock_guard<std::mutex> guard(transport().mutex);
  transport().communicators -= communicators;
}

void park_message() {
  static char unused = 0;
  auto& known = transport();
  const auto exchange =
      std::make_shared<StoreExchange>(c10::make_intrusive<c10d::HashStore>(), Clock::time_point::max());
  known.own = std::make_unique<ccl::communicator>(ccl::create_communicator(1, 0, exchange));
  exchange->close();
  known.parked = ccl::recv(&unused, 1, ccl::datatype::int8, 0, *known.own);
}

} // namespace

void Remains::add(Paths paths) {
  for (auto* const communicator : {&paths.communicator, &paths.across}) {
    if (*communicator) {
      communicators.push_back(std::move(*communicator));
    }
  }
}

bool uses_shared_memory() {
  const char* value = std::getenv("CCL_ATL_SHM");
  return value != nullptr && std::string(value) != "0";
}

void initialize_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    const Capture standard_output(std::cout);
    ccl::init();
  });
}

void check_reach(const std::vector<int64_t>& ranks, const std::string& where) {
  auto& known = transport();
  std::lock_guard<std::mutex> guard(known.mutex);
  if (known.communicators == 0 || known.ranks.empty() || !uses_shared_memory()) {
    return;
  }
  const auto is_known = [&](int64_t rank) {
    return std::find(known.ranks.begin(), known.ranks.end(), rank) != known.ranks.end();
  };
  CCL_CHECK(
      !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), is_known),
      where, " has ranks that are not in this process's first ccl group, which shared memory does not support: create "
      "a ccl group of all ranks first, or set CCL_ATL_SHM=0 and FI_PROVIDER=tcp");
}

void communicator_made(const std::vector<int64_t>& ranks) {
  auto& known = transport();
  if (known.communicators == 0) {
    park_message();
  }
  std::lock_guard<std::mutex> guard(known.mutex);
  if (known.communicators++ == 0) {
    known.ranks = ranks;
  }
}

void make_progress() {
  (void)transport().parked.test();
}

void retire(Remains remains, bool is_idle) {
  auto& known = transport();
  const auto count = remains.communicators.size();
  if (is_idle && known.given_up.empty() && known.communicators > count) {
    { const Remains gone = std::move(remains); }
    count_down(count);
    return;
  }
  known.given_up.push_back(std::move(remains));
  const auto given_up = count_given_up();
  if (known.communicators != given_up) {
    return;
  }
  // No group uses oneCCL now. The executor's threads and queues end first, so that nothing accesses the resources of
  // the communicators. The last communicator closes the transport, with its connections and shared memory.
  auto* const executor = atl_base_comm::executor;
  executor->~ccl_executor();
  known.parked = Transfer();
  known.own = nullptr;
  known.given_up.clear();
  count_down(given_up);
  new (executor) ccl_executor(nullptr);
  // In another thread: releasing a tensor may need the GIL.
  Completions::instance().post([released = Engine::instance().take_kept()] {});
}

} // namespace ccl_backend
