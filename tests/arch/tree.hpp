// Reads a tree of sources: lines, includes, and what a component's CMakeLists.txt declares.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace cleave::arch {

struct Include {
  std::string header;
  bool quoted = false;
  std::size_t line = 0;  ///< counted from 1
};

/// The arguments of cleave_component(); `packages` are PACKAGES together with PRIVATE_PACKAGES.
struct Declared {
  std::set<std::string> links, packages;
};

[[nodiscard]] std::vector<std::string> read_lines(const std::filesystem::path& path);
[[nodiscard]] std::vector<Include> includes_of(const std::filesystem::path& file);
/// Every .hpp and .cpp below `folder`, sorted; none where there is no such folder.
[[nodiscard]] std::vector<std::filesystem::path> sources_under(const std::filesystem::path& folder);
[[nodiscard]] bool is_source(const std::filesystem::path& path);
/// Nothing where the file has no cleave_component().
[[nodiscard]] std::optional<Declared> read_component(const std::filesystem::path& cmake_lists);

/// The parts between separators, without blanks and backquotes around them.
[[nodiscard]] std::vector<std::string> split(const std::string& text, char separator);
/// `file:line: `, the file as seen from `root`.
[[nodiscard]] std::string at(const std::filesystem::path& root, const std::filesystem::path& file, std::size_t line);

}  // namespace cleave::arch
