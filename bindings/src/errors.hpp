// One-line messages.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace ccl_backend {

// What `error` says, without the list of C++ frames that torch's errors carry.
inline std::string message_of(const std::exception& error) {
  const auto* const torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
}

} // namespace ccl_backend
