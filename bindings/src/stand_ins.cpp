// The symbols that oneCCL's static library expects from Intel's other libraries.
#include <cstddef>
#include <cstring>

#define HIDDEN __attribute__((visibility("hidden")))
#define HOOK(name) HIDDEN void* name##_ptr__3_0 = nullptr

extern "C" {

// From Intel's compiler runtime, libintlc.so.5. The C library's functions are equivalent.
HIDDEN void* _intel_fast_memcpy(void* to, const void* from, size_t count) {
  return std::memcpy(to, from, count);
}
HIDDEN void* _intel_fast_memset(void* to, int value, size_t count) {
  return std::memset(to, value, count);
}

// Tracing hooks, as null pointers: oneCCL checks them before use. torch exports the same names, but may be built
// without them.
HOOK(__itt_domain_create);
HOOK(__itt_event_create);
HOOK(__itt_event_end);
HOOK(__itt_event_start);
HOOK(__itt_metadata_add);
HOOK(__itt_string_handle_create);
HOOK(__itt_task_begin);
HOOK(__itt_task_end);
HOOK(__itt_thread_set_name);

}
