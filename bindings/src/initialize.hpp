// Starts oneCCL once in a process.
#pragma once

namespace ccl_backend {

// oneCCL prints a line on standard output for each variable that is not at its default, the first of them before
// its log level is read. These lines are taken out; whatever else it prints goes on to standard error.
void initialize_library();

} // namespace ccl_backend
