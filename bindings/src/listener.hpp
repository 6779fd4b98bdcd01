// Connections between two ranks, authenticated by tokens from the store.
#pragma once

#include "sockets.hpp"

#include <string>
#include <thread>

namespace ccl_backend {

// Accepts the connection of one rank. A client has to send a secret token, and receives a reply token that only this
// rank knows. Clients are checked concurrently, and each has a short time for this handshake.
//
// Threads: the constructor starts one that listens.
class Listener {
 public:
  // Listens on the rank's own address. Raises DistBackendError.
  Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  // The argument of connect_to: "10.0.0.1 40123 9f3c...". The last part is the secret, then the reply.
  const std::string& address() const {
    return address_;
  }

  // Stops listening. Returns the connection that completed the handshake; not open if none did.
  Socket finish();

 private:
  void run();

  Socket stop_;
  Socket socket_;
  std::string address_;
  std::string secret_;
  std::string reply_;
  Socket accepted_; // used by the thread until the thread has ended
  std::thread thread_;
};

// Connects to the Listener with this address and completes the handshake. Raises DistBackendError at the deadline, or
// when the kernel reports an error. The caller has to report the outcome to the other rank, which cannot know whether
// its reply arrived before the deadline.
Socket connect_to(const std::string& address, Deadline deadline);

} // namespace ccl_backend
