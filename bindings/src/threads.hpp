// The threads of this library. No exception leaves one, which would end the process.
#pragma once

#include <functional>
#include <string>

namespace ccl_backend {

// Calls `body` in a new detached thread, and `failed` with the message of what it raises. Raises DistBackendError if
// the system does not start a thread.
void start_thread(
    const char* name, std::function<void()> body, std::function<void(const std::string&)> failed = nullptr);

// The same for a thread that all groups need. When `body` raises, all operations in flight fail with the reason, and
// `body` is called again. The thread ends when `body` returns. Returns true, for a static constant.
bool start_service(const char* name, std::function<void()> body);

} // namespace ccl_backend
