#include "mailbox.hpp"

#include "types.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace ccl_backend {
namespace {

constexpr auto kByteType = ccl::datatype::int8;

bool agree(const Mailbox::Incoming& incoming, int source, int64_t tag) {
  return incoming.tag == tag && (incoming.source == source || incoming.source == Mailbox::kAnySource);
}

} // namespace

std::shared_ptr<Mailbox::Outgoing> Mailbox::send(int destination, int64_t tag, const at::Tensor& buffer) {
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->header = {tag, static_cast<int64_t>(buffer.nbytes())};
  outgoing->buffer = buffer;
  channels_[destination].outgoing.push_back(outgoing);
  advance_sends(destination);
  return outgoing;
}

void Mailbox::advance_sends(int destination) {
  auto& queue = channels_[destination].outgoing;
  // One message at a time: oneCCL may delay a transfer when its queues are full, and start a later one first.
  while (!queue.empty()) {
    auto& message = *queue.front();
    if (message.stage == Outgoing::kQueued) {
      message.transfer =
          ccl::send(message.header.data(), sizeof(message.header), kByteType, destination, communicator_);
      message.stage = Outgoing::kHeader;
    }
    if (!message.transfer.test()) {
      return;
    }
    if (message.stage == Outgoing::kHeader && message.header[1] > 0) {
      message.transfer =
          ccl::send(message.buffer.data_ptr(), message.buffer.nbytes(), kByteType, destination, communicator_);
      message.stage = Outgoing::kData;
      continue;
    }
    message.is_complete = true;
    queue.pop_front();
  }
}

std::shared_ptr<Mailbox::Incoming> Mailbox::receive(int source, int64_t tag, const at::Tensor& buffer) {
  auto incoming = std::make_shared<Incoming>();
  incoming->source = source;
  incoming->tag = tag;
  incoming->buffer = buffer;
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const auto& message) {
    return agree(*incoming, message->source, message->tag);
  });
  if (kept == kept_.end()) {
    wanted_.push_back(incoming);
  } else {
    incoming->kept = *kept;
    kept_.erase(kept);
  }
  return incoming;
}

bool Mailbox::advance_receive(Incoming& incoming) {
  if (incoming.kept) {
    advance_receives(incoming.kept->source);
    if (!incoming.kept->is_complete) {
      return false;
    }
    check_size(incoming, static_cast<int64_t>(incoming.kept->buffer.nbytes()));
    std::memcpy(incoming.buffer.data_ptr(), incoming.kept->buffer.data_ptr(), incoming.buffer.nbytes());
    incoming.source = incoming.kept->source;
    incoming.kept = nullptr;
    incoming.is_complete = true;
  } else if (incoming.source != kAnySource) {
    advance_receives(incoming.source);
  } else {
    for (int source = 0; source < communicator_.size(); ++source) {
      if (source != communicator_.rank()) {
        advance_receives(source);
      }
    }
  }
  return incoming.is_complete;
}

bool Mailbox::is_wanted(int source) const {
  return std::any_of(wanted_.begin(), wanted_.end(), [&](const auto& incoming) {
    return incoming->source == source || incoming->source == kAnySource;
  });
}

void Mailbox::check_size(const Incoming& incoming, int64_t bytes) {
  const auto expected = static_cast<int64_t>(incoming.buffer.nbytes());
  CCL_CHECK(bytes == expected, "recv: expected a message of ", expected, " bytes, found one of ", bytes);
}

std::shared_ptr<Mailbox::Incoming> Mailbox::match(int source, const std::array<int64_t, 2>& header) {
  const auto found = std::find_if(
      wanted_.begin(), wanted_.end(), [&](const auto& incoming) { return agree(*incoming, source, header[0]); });
  if (found != wanted_.end()) {
    auto incoming = *found;
    check_size(*incoming, header[1]);
    incoming->source = source;
    wanted_.erase(found);
    return incoming;
  }
  if (header[1] < 0) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("expected a message of 0 or more bytes from rank ", source, ", found a header with ", header[1]));
  }
  auto kept = std::make_shared<Incoming>();
  kept->source = source;
  kept->tag = header[0];
  kept->buffer = at::empty({header[1]}, at::kByte);
  kept_.push_back(kept);
  return kept;
}

void Mailbox::advance_receives(int source) {
  auto& channel = channels_[source];
  while (true) {
    switch (channel.stage) {
      case Channel::kIdle:
        if (!is_wanted(source)) {
          return;
        }
        channel.transfer = ccl::recv(channel.header.data(), sizeof(channel.header), kByteType, source, communicator_);
        channel.stage = Channel::kAwaitsHeader;
        break;
      case Channel::kAwaitsHeader:
        if (!channel.transfer.test()) {
          return;
        }
        channel.stage = Channel::kHasHeader;
        break;
      case Channel::kHasHeader:
        if (!is_wanted(source)) {
          return; // a receive from any source has received a message from another rank
        }
        channel.incoming = match(source, channel.header);
        if (channel.header[1] > 0) {
          auto& buffer = channel.incoming->buffer;
          channel.transfer = ccl::recv(buffer.data_ptr(), buffer.nbytes(), kByteType, source, communicator_);
        } else {
          channel.transfer = Transfer();
        }
        channel.stage = Channel::kAwaitsData;
        break;
      case Channel::kAwaitsData:
        if (!channel.transfer.test()) {
          return;
        }
        channel.incoming->is_complete = true;
        channel.incoming = nullptr;
        channel.stage = Channel::kIdle;
        break;
    }
  }
}

bool Mailbox::is_busy() const {
  return std::any_of(channels_.begin(), channels_.end(), [](const Channel& channel) {
    return !channel.transfer.is_complete() || !channel.outgoing.empty();
  });
}

} // namespace ccl_backend
