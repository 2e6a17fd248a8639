// The registry of systems. A new one is one file in src/rivals/ and one line in registry.cpp.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "cleave/rivals/system.hpp"

namespace cleave::rivals {

/// Every system, in the order of the documentation: cleave, cleave-paper, then the rivals.
[[nodiscard]] std::vector<std::unique_ptr<System>> all_systems();

/// The system of that name; null for an unknown one.
[[nodiscard]] std::unique_ptr<System> find_system(std::string_view name);

}  // namespace cleave::rivals
