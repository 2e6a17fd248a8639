// Bytes from 0x80 on pass, so that UTF-8 stays what it is.
#include "cleave/base/one_line.hpp"

#include <fmt/format.h>

namespace cleave {

std::string one_line(std::string_view message) {
  std::string line;
  line.reserve(message.size());
  for (const char c : message) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return line;
}

}  // namespace cleave
