// How two ranks connect, so that both know whether the connection stands.
#pragma once

#include "sockets.hpp"

#include <string>
#include <thread>

namespace ccl_backend {

// Waits for one rank. Whoever connects has to say a secret and gets an answer that only this rank can give; all others
// are checked at the same time, and each has a short time to say it.
//
// Threads: one of its own listens, from the beginning.
class Listener {
 public:
  // On the rank's own address. Raises DistBackendError.
  Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  // For connect_to: "10.0.0.1 40123 9f3c...", the last being secret and answer.
  const std::string& address() const {
    return address_;
  }

  // Listens no longer. The connection that got the answer; not open if there is none.
  Socket finish();

 private:
  void run();

  Socket stop_;
  Socket socket_;
  std::string address_;
  std::string secret_;
  std::string answer_;
  Socket answered_; // of the thread, until that has ended
  std::thread thread_;
};

// A connection that the rank with this address has answered. Raises DistBackendError at the deadline, or with what the
// kernel said. The other end has to be told whether it succeeded: the answer may come too late.
Socket connect_to(const std::string& address, Deadline deadline);

} // namespace ccl_backend
