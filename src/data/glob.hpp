// Finding text files: globs and folders, in an order that depends on names only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::data {

/// Whether `name` matches `pattern`: `*` = any run of characters, `?` = any one byte, anything else itself.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

/// Whether the path holds `*` or `?`.
[[nodiscard]] bool is_glob(const std::filesystem::path& path);

/// Whether a search passes this name over: hidden, or a folder of things made by a build or a run.
[[nodiscard]] bool is_passed_over(std::string_view name, bool is_folder);

struct Found {
  std::vector<std::filesystem::path> files;  ///< sorted by path
  std::vector<std::string> unreadable;       ///< "FOLDER: reason", for folders that could not be listed
  std::int64_t names_left = 0;               ///< that may still be looked at; below 0 the search was given up
};

/// All files below `folder` that the search does not pass over. Looks at `most_names` names, then gives up.
[[nodiscard]] Found find_in_folder(const std::filesystem::path& folder, std::int64_t most_names);

/// All files that a pattern with `*`, `?` and `**` yields; likewise.
[[nodiscard]] Found find_by_glob(const std::filesystem::path& pattern, std::int64_t most_names);

}  // namespace cleave::data
