// The library behind checkpoint files, for --version.
#pragma once

#include <string>

namespace cleave::checkpoint {

/// Name and version of the library in use: "HDF5 1.10.8".
[[nodiscard]] std::string checkpoint_library();

}  // namespace cleave::checkpoint
