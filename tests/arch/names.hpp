// Names in anonymous namespaces: within a component each belongs to one file. Files of a component are compiled eight
// at a time, so that two of the same name clash, or one takes the place of the other, as soon as they meet in a unit.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "layering.hpp"

namespace cleave::arch {

/// Types and constants that two source files of one component define in anonymous namespaces. Files for one instruction
/// set (`*_avx2.cpp`, `*_avx512.cpp`) are compiled alone and have the names of their counterparts.
[[nodiscard]] std::vector<std::string> find_repeated_names(const std::filesystem::path& root, const Table& table);

}  // namespace cleave::arch
