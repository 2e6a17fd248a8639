// Holds the project to what it uses: a right that nobody uses is a dependency that users of the packages pay for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "layering.hpp"

namespace cleave::arch {

/// Rights of `table`, packages of CMakeLists.txt files and public headers under `root` that nobody uses, and classes
/// that public headers declare without defining them; each says exactly what to take away. Empty when all is well.
[[nodiscard]] std::vector<std::string> find_unused_rights(const std::filesystem::path& root, const Table& table);

}  // namespace cleave::arch
