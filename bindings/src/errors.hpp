// Error messages of one line.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace ccl_backend {

// The message of `error`, without the C++ stack trace of torch's errors.
inline std::string message_of(const std::exception& error) {
  const auto* const torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs != nullptr ? torchs->what_without_backtrace() : error.what();
}

} // namespace ccl_backend
