// Tagged messages between two ranks of a group.
#pragma once

#include "departures.hpp"
#include "transfer.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <vector>

namespace ccl_backend {

// oneCCL delivers messages from one rank to another in order, without tags or sizes. Each message is therefore sent as
// a header (tag, bytes) followed by the data. A message whose tag no receive waits for is kept until one does.
//
// All members are called with the engine locked.
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
    int source; // kAnySource until a message matches; then its sender
    int64_t tag;
    at::Tensor buffer;
    bool is_complete = false;
    std::shared_ptr<Incoming> kept; // a message that arrived before this receive was posted
  };

  static constexpr int kAnySource = Needs::kAnyRank;

  Mailbox(const ccl::communicator& communicator, int size) : communicator_(communicator), channels_(size) {}

  std::shared_ptr<Outgoing> send(int destination, int64_t tag, const at::Tensor& buffer);
  std::shared_ptr<Incoming> receive(int source, int64_t tag, const at::Tensor& buffer);

  // Make progress without blocking; advance_receive returns whether the message is complete. Raise ValueError for a
  // message of another size than the buffer.
  void advance_sends(int destination);
  bool advance_receive(Incoming& incoming);

  // Whether a transfer is in flight: of a message, or of a header that no receive waits for any more, which is possible
  // after a receive from any source.
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
