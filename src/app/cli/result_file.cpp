// One meaning of "-" for all commands.
#include "cli/result_file.hpp"

#include <cstdio>

#include "cleave/base/atomic_file.hpp"

namespace cleave::app {

bool is_standard_output(const std::string& name) { return name == "-"; }

void write_result(const std::string& name, std::string_view text) {
  if (is_standard_output(name)) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    replace_file(name, text);
  }
}

}  // namespace cleave::app
