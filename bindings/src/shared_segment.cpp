#include "shared_segment.hpp"

#include "store_barriers.hpp"
#include "transport.hpp"

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <mutex>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace ccl_backend {
namespace {

constexpr const char* kName = "ccl-shared-";
constexpr const char* kPlace = "place"; // in the store: the path of rank 0's file

constexpr const char* kMissing = "missing"; // in the store: why a rank has no memory

// Empty: the user has turned shared memory off.
void warn_once(const std::string& reason) {
  static std::once_flag once;
  if (reason.empty()) {
    return;
  }
  std::call_once(once, [&] {
    std::cerr << c10::str(
                     "ccl: the ranks of this node do not share memory, so their sums and gathers are several times "
                     "slower: ", reason, ". Each rank has to be allowed to open /proc/PID/fd of rank 0: start them as "
                     "one user, in one container\n")
              << std::flush;
  });
}

// A file descriptor, closed at the end of the scope. A mapping remains.
struct File {
  explicit File(int descriptor) : descriptor(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
  const int descriptor;
};

std::string random_name() {
  std::random_device device;
  std::string name = kName;
  for (int i = 0; i < 4; ++i) {
    name += std::to_string(device()) + "-";
  }
  return name;
}

// The file whose "PATH NAME" rank 0 has published. -1 and errno if this process cannot open it, or if another file has this
// path: process numbers repeat on other nodes, and in other containers.
int open_published(const std::string& published) {
  const auto space = published.find(' ');
  if (space == std::string::npos) {
    errno = ENOENT;
    return -1;
  }
  const auto path = published.substr(0, space);
  std::array<char, PATH_MAX> target{};
  const auto length = ::readlink(path.c_str(), target.data(), target.size() - 1);
  if (length < 0) {
    return -1;
  }
  if (std::string(target.data(), length).find(published.substr(space + 1)) == std::string::npos) {
    errno = ENOENT;
    return -1;
  }
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

void* map(int descriptor, size_t bytes) {
  if (descriptor < 0) {
    return nullptr;
  }
  auto* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  (void)::madvise(memory, bytes, MADV_DONTFORK); // children take no part in the group
  return memory;
}

// -1 if the kernel has no memory for it.
int create_file(const std::string& name, size_t bytes) {
  const int descriptor = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor >= 0 && ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

} // namespace

std::shared_ptr<SharedSegment> SharedSegment::create(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& parent, const TimeLimit& limit,
    const std::function<void()>& check) {
  if (group.size < 2 || group.size > kMostRanks) {
    return nullptr;
  }
  // Differs between ranks if one node has a single rank: all have to agree below.
  const bool is_wanted = uses_shared_memory();
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>("shared", parent);
  const auto size = bytes(group.size);
  const auto agree = [&](void* memory) { // nullptr if the memory of any rank is missing
    auto segment = memory ? std::make_shared<SharedSegment>(memory, group.rank, group.size) : nullptr;
    if (segment == nullptr) {
      const auto reason = c10::str("rank ", group.global_rank(group.rank), " has none: ", std::strerror(errno));
      put_text(*store, kMissing, is_wanted ? reason : "");
    }
    join(group, *store, limit, check);
    if (!store->check({kMissing})) {
      return segment;
    }
    if (group.rank == 0) {
      warn_once(get_text(*store, kMissing));
    }
    return std::shared_ptr<SharedSegment>();
  };
  if (group.rank == 0) {
    const auto name = random_name();
    const File file(is_wanted ? create_file(name, size) : -1);
    auto* const memory = map(file.descriptor, size);
    const int error = errno;
    put_text(*store, kPlace, c10::str("/proc/", getpid(), "/fd/", file.descriptor, " ", name));
    errno = error;
    // Keeps the file open until all ranks have mapped it. The kernel's zeros are the initial counters.
    return agree(memory);
  }
  wait_for(*store, kPlace, limit, check);
  const File file(is_wanted ? open_published(get_text(*store, kPlace)) : -1);
  return agree(map(file.descriptor, size));
}

SharedSegment::SharedSegment(void* memory, int rank, int size)
    : rank(rank), size(size), memory_(static_cast<char*>(memory)), process_(getpid()) {}

SharedSegment::~SharedSegment() {
  if (getpid() == process_) { // in a forked child, other memory may have this address
    ::munmap(memory_, bytes(size));
  }
}

} // namespace ccl_backend
