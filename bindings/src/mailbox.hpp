// Messages between two ranks of a group, with tags.
#pragma once

#include "transfer.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <vector>

namespace ccl_backend {

// oneCCL delivers the messages from one rank to another in their order, and knows neither tags nor sizes. So each
// message goes as a header (tag, bytes), then the data. A message whose tag nobody waits for is kept until somebody
// does.
//
// Everything here runs with the engine locked.
class Mailbox {
 public:
  struct Outgoing {
    std::array<int64_t, 2> header; // tag, bytes
    at::Tensor buffer;
    bool is_complete = false;

   private:
    friend class Mailbox;
    enum { kQueued, kHeader, kData } stage = kQueued;
    Transfer transfer;
  };

  struct Incoming {
    int source; // kAnySource: of whoever sends first; then the rank that did
    int64_t tag;
    at::Tensor buffer;
    bool is_complete = false;
    std::shared_ptr<Incoming> kept; // the message had come before it was asked for
  };

  static constexpr int kAnySource = -1;

  Mailbox(const ccl::communicator& communicator, int size) : communicator_(communicator), channels_(size) {}

  std::shared_ptr<Outgoing> send(int destination, int64_t tag, const at::Tensor& buffer);
  std::shared_ptr<Incoming> receive(int source, int64_t tag, const at::Tensor& buffer);

  // Move what can be moved. Raises ValueError for a message that does not fit.
  void advance_sends(int destination);
  bool advance_receive(Incoming& incoming);

  // A transfer is in flight: of a message, or of a header that nobody waits for any more, as happens after a receive
  // from any source.
  bool is_busy() const;

 private:
  struct Channel {
    std::deque<std::shared_ptr<Outgoing>> outgoing;
    enum { kIdle, kAwaitsHeader, kHasHeader, kAwaitsData } stage = kIdle;
    std::array<int64_t, 2> header{};
    Transfer transfer;
    std::shared_ptr<Incoming> incoming;
  };

  void advance_receives(int source);
  bool is_wanted(int source) const;
  std::shared_ptr<Incoming> match(int source, const std::array<int64_t, 2>& header);
  static void check_size(const Incoming& incoming, int64_t bytes);

  const ccl::communicator& communicator_;
  std::vector<Channel> channels_;
  std::list<std::shared_ptr<Incoming>> wanted_; // in the order of the calls
  std::list<std::shared_ptr<Incoming>> kept_; // in the order of arrival
};

} // namespace ccl_backend
