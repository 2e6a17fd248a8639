// The version of Cleave, as --version prints it and files record it.
#pragma once

namespace cleave {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace cleave
