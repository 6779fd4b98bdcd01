// Sums over several nodes with several ranks each, which send each element over the network once per node.
#pragma once

#include "shared_exchange.hpp"

#include <oneapi/ccl.hpp>

namespace ccl_backend {

// One lane of a group. A sum has three steps: the ranks of a node add each other's tensors through shared memory, so
// that each of them has the node's sum of a slice; the ranks with the same slice on all nodes sum over the network; the
// ranks of a node copy each other's slices. A tensor is processed in chunks, so the network is busy during the other
// steps. All members are called with the engine locked.
class Hierarchy : public std::enable_shared_from_this<Hierarchy> {
 public:
  // A contiguous tensor, which receives the sum.
  struct Sum {
    char* data;
    size_t count; // of elements
    size_t element_bytes;
    SumFunction add;
    uint64_t type; // of the elements, compared between the ranks
    // Starts the sum of `count` elements over a communicator, in place.
    std::function<ccl::event(char* data, size_t count, const ccl::communicator& communicator)> start;
  };

  // `across`: of the ranks with this rank's position on their nodes. Has to outlive the transfers.
  Hierarchy(std::shared_ptr<SharedExchange> node, int node_size, int position, const ccl::communicator& across)
      : node_(std::move(node)), node_size_(node_size), position_(position), across_(across) {}

  // `sum.count` is a multiple of `node_size`.
  Transfer start(Sum sum);

  int node_size() const {
    return node_size_;
  }

 private:
  friend class HierarchicalTransfer;

  const std::shared_ptr<SharedExchange> node_;
  const int node_size_;
  const int position_; // of this rank on its node
  const ccl::communicator& across_;
  uint64_t started_ = 0; // calls
  uint64_t finished_ = 0;
};

} // namespace ccl_backend
