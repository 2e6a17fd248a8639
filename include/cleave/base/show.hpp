// Sizes as messages to people have them, in the units in which inputs declare memory.
#pragma once

#include <string>

#include "cleave/base/units.hpp"

namespace cleave {

/// `12 B`, `3.4 kB`, `512.0 MB`, `1.25 GB`: decimal units.
[[nodiscard]] std::string show_bytes(double bytes);
[[nodiscard]] inline std::string show_bytes(Bytes bytes) { return show_bytes(static_cast<double>(bytes.value())); }

}  // namespace cleave
