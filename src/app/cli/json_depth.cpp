// One pass over the text.
#include "cli/json_depth.hpp"

#include <algorithm>

namespace cleave::app {

int json_depth(std::string_view text) {
  int depth = 0, most = 0;
  bool quoted = false, escaped = false;
  for (const char c : text) {
    if (quoted) {
      quoted = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

}  // namespace cleave::app
