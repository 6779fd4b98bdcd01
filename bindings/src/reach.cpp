#include "reach.hpp"

#include "types.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>

namespace ccl_backend {
namespace {

struct Reach {
  std::mutex mutex;
  int communicators = 0;
  std::vector<int64_t> ranks; // of the first communicator
};

Reach& reach() {
  static auto* const reach = new Reach();
  return *reach;
}

bool uses_shared_memory() {
  const char* value = std::getenv("CCL_ATL_SHM");
  return value != nullptr && std::string(value) != "0";
}

} // namespace

void check_reach(const std::vector<int64_t>& ranks, const std::string& where) {
  auto& known = reach();
  std::lock_guard<std::mutex> guard(known.mutex);
  if (known.communicators == 0 || known.ranks.empty() || !uses_shared_memory()) {
    return;
  }
  const auto is_known = [&](int64_t rank) {
    return std::find(known.ranks.begin(), known.ranks.end(), rank) != known.ranks.end();
  };
  CCL_CHECK(
      !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), is_known),
      where, " has ranks that this process's first ccl group had not, which shared memory does not allow: make a ccl "
      "group of all ranks first, or set CCL_ATL_SHM=0 and FI_PROVIDER=tcp");
}

void communicator_made(const std::vector<int64_t>& ranks) {
  auto& known = reach();
  std::lock_guard<std::mutex> guard(known.mutex);
  if (known.communicators++ == 0) {
    known.ranks = ranks;
  }
}

void communicator_gone() {
  auto& known = reach();
  std::lock_guard<std::mutex> guard(known.mutex);
  --known.communicators;
}

} // namespace ccl_backend
