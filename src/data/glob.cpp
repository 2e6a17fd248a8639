// Globs are expanded one path component at a time; `**` stands for no folder or any chain of folders.
#include "glob.hpp"

#include <algorithm>

namespace cleave::data {

namespace fs = std::filesystem;

bool matches(std::string_view pattern, std::string_view name) {
  // Greedy with one point of return: after a mismatch the last star takes one character more.
  std::size_t p = 0, n = 0, star = std::string_view::npos, star_n = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_n = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_n;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_glob(const fs::path& path) { return path.native().find_first_of("*?") != std::string::npos; }

bool is_passed_over(std::string_view name, bool is_folder) {
  return name.starts_with('.') || (is_folder && (name == "build" || name == "runs"));
}

namespace {

struct Entry {
  fs::path path;
  bool is_folder = false;  ///< a folder, not a link to one: links could lead in circles
  bool is_file = false;    ///< a regular file or a link to one
};

/// The entries of a folder; empty, with a note in `found`, where it cannot be listed. Once the search is given up,
/// none.
std::vector<Entry> list(const fs::path& folder, Found& found) {
  std::vector<Entry> entries;
  if (found.names_left < 0) return entries;
  std::error_code error;
  fs::directory_iterator next(folder.empty() ? fs::path(".") : folder, error);
  for (; !error && next != fs::directory_iterator() && found.names_left >= 0; next.increment(error)) {
    --found.names_left;
    std::error_code ignored;
    const fs::path path = folder / next->path().filename();
    entries.push_back(
        {path, next->is_directory(ignored) && !next->is_symlink(ignored), next->is_regular_file(ignored)});
  }
  if (error) found.unreadable.push_back(folder.string() + ": " + error.message());
  return entries;
}

void search(const fs::path& folder, Found& found) {
  for (const Entry& entry : list(folder, found)) {
    const std::string name = entry.path.filename().string();
    if (is_passed_over(name, entry.is_folder)) continue;
    if (entry.is_folder) search(entry.path, found);
    if (entry.is_file) found.files.push_back(entry.path);
  }
}

using Components = std::vector<std::string>;

/// Expands pattern[at...] below `base`.
void expand(const fs::path& base, const Components& pattern, std::size_t at, Found& found) {
  const std::string& component = pattern[at];
  const bool last = at + 1 == pattern.size();
  if (component == "**") {
    if (last) return search(base, found);
    expand(base, pattern, at + 1, found);
    for (const Entry& entry : list(base, found)) {
      if (entry.is_folder && !is_passed_over(entry.path.filename().string(), true)) {
        expand(entry.path, pattern, at, found);
      }
    }
    return;
  }
  if (!is_glob(component)) {
    std::error_code ignored;
    const fs::path path = base / component;
    if (last && fs::is_regular_file(path, ignored)) found.files.push_back(path);
    if (!last && fs::is_directory(path, ignored)) expand(path, pattern, at + 1, found);
    return;
  }
  for (const Entry& entry : list(base, found)) {
    const std::string name = entry.path.filename().string();
    if (!matches(component, name)) continue;
    if (name.starts_with('.') && !component.starts_with('.')) continue;
    std::error_code ignored;
    if (last && entry.is_file) found.files.push_back(entry.path);
    if (!last && fs::is_directory(entry.path, ignored) &&
        !(is_passed_over(name, true) && !component.starts_with('.'))) {
      expand(entry.path, pattern, at + 1, found);
    }
  }
}

void sort(Found& found) {
  std::sort(found.files.begin(), found.files.end());
  found.files.erase(std::unique(found.files.begin(), found.files.end()), found.files.end());
  std::sort(found.unreadable.begin(), found.unreadable.end());
  found.unreadable.erase(std::unique(found.unreadable.begin(), found.unreadable.end()), found.unreadable.end());
}

}  // namespace

Found find_in_folder(const fs::path& folder, std::int64_t most_names) {
  Found found{.files = {}, .unreadable = {}, .names_left = most_names};
  search(folder, found);
  sort(found);
  return found;
}

Found find_by_glob(const fs::path& pattern, std::int64_t most_names) {
  Components components;
  for (const fs::path& component : pattern.relative_path()) {
    // `**` twice in a row says no more than once, and would list the same folders over and over.
    if (component == "**" && !components.empty() && components.back() == "**") continue;
    if (!component.empty()) components.push_back(component.string());
  }
  Found found{.files = {}, .unreadable = {}, .names_left = most_names};
  if (!components.empty()) expand(pattern.root_path(), components, 0, found);
  sort(found);
  return found;
}

}  // namespace cleave::data
