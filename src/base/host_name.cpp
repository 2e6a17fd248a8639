// gethostname(2).
#include "cleave/base/host_name.hpp"

#include <unistd.h>

#include <array>

namespace cleave {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : std::string();
}

}  // namespace cleave
