// Text that somebody else chose, where people read it.
#pragma once

#include <string>
#include <string_view>

namespace cleave {

/// The text on one line, with nothing in it that moves a terminal's cursor: \n, and \x1b of other control characters.
[[nodiscard]] std::string one_line(std::string_view text);

}  // namespace cleave
