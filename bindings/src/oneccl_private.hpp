// What this library uses of oneCCL beyond its documented interface. build.py refuses every release but this one: with
// another, check each line of the list.
//
// | what | used in | why |
// | --- | --- | --- |
// | `ccl_executor`, `atl_base_comm::executor` | transport.cpp | transfers that never complete keep the communicators alive; destroying the executor, and creating it in the same memory, ends them all |
// | `atl_ofi::prov_ep_handle_cq_err`, the member `cq` of its argument | oneccl_private.cpp replaces it | oneCCL's own lets whichever transfer is polled raise the error of any transfer: the polled one can then never complete, and a worker thread ends the process |
// | an event that is tested polls all transfers, one whose destructor runs waits | transport.cpp, transfer.hpp | a rank has to receive while it waits for something else; an event may never complete |
// | all gathers into a list of buffers, and barriers, block inside the call | steps.cpp | they are not used: a timeout could not end them |
// | `ccl::kvs_interface`: keys, and `LOCAL_KVS_ID`, which may be empty | rendezvous.cpp | the addresses go through torch's store |
// | lines with " changed to be " on standard output | transport.cpp | dropped, because programs print results there |
// | `__itt_*_ptr__3_0`, `_intel_fast_memcpy`, `_intel_fast_memset` | stand_ins.cpp | symbols of Intel's other libraries |
//
// Of libfabric: `fid_cq`, `fi_cq_err_entry` (public, in oneccl_private.cpp), and the counter `smr_global_ep_idx` of its
// shared-memory provider (_shm.py).
#pragma once

#include <oneapi/ccl/config.h>

#include <optional>
#include <string>

static_assert(
    CCL_MAJOR_VERSION == 2022 && CCL_MINOR_VERSION == 2 && CCL_UPDATE_VERSION == 0, "expected oneCCL 2022.2.0");

// The executor has the queues of transfers that its threads, or the threads that poll for completion, process.
class ccl_executor {
 public:
  explicit ccl_executor(const char* main_address);
  ~ccl_executor();
};
class atl_base_comm {
 public:
  static ccl_executor* executor;
};

namespace ccl_backend {

// Until its end, a failed transfer makes oneCCL's calls in this thread raise, as without the replacement.
class RaiseTransferErrors {
 public:
  RaiseTransferErrors();
  ~RaiseTransferErrors();
  RaiseTransferErrors(const RaiseTransferErrors&) = delete;
  RaiseTransferErrors& operator=(const RaiseTransferErrors&) = delete;
};

// The error of a transfer that has failed since the last call. Which transfer it was is unknown. Any thread may call.
std::optional<std::string> take_transfer_error();

} // namespace ccl_backend
