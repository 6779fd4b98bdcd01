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

// Of the exception that is being handled. Never empty.
inline std::string current_message() {
  std::string message;
  try {
    throw;
  } catch (const std::exception& error) {
    message = message_of(error);
  } catch (...) {
  }
  return message.empty() ? "an error without a message" : message;
}

} // namespace ccl_backend
