// Decimal units, with as many places as tell devices of a fleet apart.
#include "cleave/base/show.hpp"

#include <fmt/format.h>

namespace cleave {

std::string show_bytes(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.2f} GB", bytes / 1e9);
}

}  // namespace cleave
