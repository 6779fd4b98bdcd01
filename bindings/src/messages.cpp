// torch.distributed's messages between two ranks.
#include "buffers.hpp"
#include "process_group.hpp"

namespace ccl_backend {

WorkPtr ProcessGroupCCL::send(Tensors& tensors, int destination, int tag) {
  constexpr auto name = "send";
  const auto buffer = readable(single(tensors, name));
  check_root(destination, name);
  CCL_CHECK(destination != rank_, name, ": rank ", rank_, " cannot send to itself");
  const auto group = require_group(name);
  auto message = std::make_shared<std::shared_ptr<Mailbox::Outgoing>>();
  const Step step{
      [=](const ccl::communicator&, Events&) { *message = group->mailbox().send(destination, tag, buffer); }, nullptr};
  Call call{c10d::OpType::SEND, name, c10d::kUnsetTimeout, tensors, {}, {step}};
  call.advance = [=] {
    group->mailbox().advance_sends(destination);
    return (*message)->is_complete;
  };
  call.peer = destination;
  return launch(std::move(call), false);
}

WorkPtr ProcessGroupCCL::recv(Tensors& tensors, int source, int tag) {
  check_root(source, "recv");
  CCL_CHECK(source != rank_, "recv: rank ", rank_, " cannot receive from itself");
  return receive(tensors, source, tag, c10d::OpType::RECV);
}

WorkPtr ProcessGroupCCL::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, Mailbox::kAnySource, tag, c10d::OpType::RECVANYSOURCE);
}

WorkPtr ProcessGroupCCL::receive(Tensors& tensors, int source, int tag, c10d::OpType type) {
  // The names that torch's own backends use in the profiler.
  const char* name = type == c10d::OpType::RECV ? "recv" : "recvAnySource";
  const auto tensor = single(tensors, name);
  const auto buffer = writable(tensor);
  const auto group = require_group(name);
  auto message = std::make_shared<std::shared_ptr<Mailbox::Incoming>>();
  auto sender = std::make_shared<int>(source);
  const Step step{
      [=](const ccl::communicator&, Events&) { *message = group->mailbox().receive(source, tag, buffer); },
      [=] {
        *sender = (*message)->source;
        write_back(tensor, buffer);
      }};
  Call call{type, name, c10d::kUnsetTimeout, {}, tensors, {step}};
  call.advance = [=] { return group->mailbox().advance_receive(**message); };
  call.peer = source;
  call.source = sender;
  return launch(std::move(call), false);
}

} // namespace ccl_backend
