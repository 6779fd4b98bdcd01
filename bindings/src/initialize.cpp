#include "initialize.hpp"

#include <oneapi/ccl.hpp>

#include <iostream>
#include <mutex>
#include <sstream>
#include <string>

namespace ccl_backend {
namespace {

constexpr const char* kChangedVariable = " changed to be ";

class Capture {
 public:
  explicit Capture(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(kept_.rdbuf())) {}

  ~Capture() {
    stream_.rdbuf(before_);
    for (std::string line; std::getline(kept_, line);) {
      if (line.find(kChangedVariable) == std::string::npos) {
        std::cerr << line << '\n';
      }
    }
  }

 private:
  std::ostream& stream_;
  std::stringstream kept_;
  std::streambuf* before_;
};

} // namespace

void initialize_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    const Capture standard_output(std::cout);
    ccl::init();
  });
}

} // namespace ccl_backend
