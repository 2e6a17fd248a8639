// Reading `data.text`: each entry to a list of files, each file once, all faults collected.
#include "cleave/data/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "glob.hpp"

namespace cleave::data {

namespace fs = std::filesystem;

namespace {

/// The contents of a file, or nothing and the reason in `why`.
std::optional<std::string> read_bytes(const fs::path& path, std::string& why) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    why = std::strerror(errno);
    return std::nullopt;
  }
  std::string bytes;
  std::error_code error;
  if (const auto size = fs::file_size(path, error); !error) bytes.reserve(static_cast<std::size_t>(size));
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    bytes.append(buffer, static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) {
    why = "reading failed";
    return std::nullopt;
  }
  return bytes;
}

/// Folders of results, of this run and of earlier ones: `results`, and `results.1` and so on beside it.
class Results {
 public:
  explicit Results(const fs::path& results) {
    std::error_code error;
    if (!results.empty()) folder_ = fs::weakly_canonical(fs::absolute(results), error);
    if (!folder_.has_filename()) folder_ = folder_.parent_path();
  }

  /// Whether a canonical path is one of the folders or lies in one.
  [[nodiscard]] bool hold(const fs::path& path) const {
    if (folder_.empty()) return false;
    for (fs::path at = path; at != at.parent_path(); at = at.parent_path()) {
      if (at.parent_path() == folder_.parent_path() && is_name(at.filename().string())) return true;
    }
    return false;
  }

 private:
  [[nodiscard]] bool is_name(std::string_view name) const {
    const std::string own = folder_.filename().string();
    if (!name.starts_with(own)) return false;
    name.remove_prefix(own.size());
    return name.empty() || (name.size() > 1 && name.front() == '.' &&
                            name.find_first_not_of("0123456789", 1) == std::string_view::npos);
  }

  fs::path folder_;
};

/// The part of a pattern before its first wildcard; all of what is none.
fs::path fixed_part(const fs::path& path) {
  fs::path fixed;
  for (const fs::path& component : path) {
    if (is_glob(component)) break;
    fixed /= component;
  }
  return fixed;
}

class Loader {
 public:
  Loader(std::string_view key, std::vector<Issue>& issues, std::int64_t most_names, const fs::path& results)
      : key_(key), issues_(issues), most_names_(most_names), results_(results) {}

  void load(const SourceEntry& entry) {
    std::error_code error;
    const auto status = fs::status(entry.resolved, error);
    if (fs::is_directory(status) && fs::equivalent(entry.resolved, entry.resolved.root_path(), error)) {
      // Also what the kernel shows as files, some of which have no end.
      report(entry, fmt::format("{}: the whole file system", entry.as_written), "name the folder of the text");
    } else if (fs::is_directory(status)) {
      load_found(entry, find_in_folder(entry.resolved, most_names_), "the folder holds no text file",
                 "binary and hidden files, build/, runs/ and output.dir are passed over");
    } else if (fs::exists(status) && !fs::is_regular_file(status)) {
      // A pipe has no end that is known, a device may have none at all.
      report(entry, fmt::format("{}: not a regular file", entry.as_written), "copy the text into a file");
    } else if (fs::exists(status)) {
      load_file(entry, entry.resolved, Binary::taken);
    } else if (is_glob(entry.resolved)) {
      load_found(entry, find_by_glob(entry.resolved, most_names_), "the pattern matches no text file",
                 "** stands for any folders, * and ? for parts of a name; binary and hidden files are passed over");
    } else if (error && status.type() != fs::file_type::not_found) {
      report(entry, fmt::format("{}: cannot be read: {}", entry.as_written, error.message()), "");
    } else {
      report(entry, fmt::format("{}: no such file or folder", entry.as_written),
             fmt::format("looked for {}", entry.resolved.string()));
    }
  }

  Text take() { return std::move(text_); }

 private:
  enum class Binary { taken, passed_over };

  void load_found(const SourceEntry& entry, const Found& found, std::string_view nothing, std::string_view hint) {
    if (found.names_left < 0) {
      report(entry, fmt::format("{}: more than {} names to look through", entry.as_written, most_names_),
             "name the folder of the text itself, or join its files");
      return;
    }
    for (const std::string& folder : found.unreadable) report(entry, "cannot list " + folder, "");
    bool any = !found.unreadable.empty();
    std::error_code error;
    const bool spelled_out = results_.hold(fs::weakly_canonical(fs::absolute(fixed_part(entry.resolved)), error));
    for (const fs::path& file : found.files) {
      if (!spelled_out && results_.hold(fs::canonical(file, error))) continue;
      any = load_file(entry, file, Binary::passed_over) || any;
    }
    if (!any) report(entry, fmt::format("{}: {}", entry.as_written, nothing), std::string(hint));
  }

  /// Whether there is something to say about the file: it is part of the text (now or before), or has an issue.
  bool load_file(const SourceEntry& entry, const fs::path& path, Binary binary) {
    std::error_code error;
    const fs::path canonical = fs::canonical(path, error);
    if (taken_.contains(error ? path : canonical)) return true;
    std::string why;
    const auto bytes = read_bytes(path, why);
    if (!bytes) {
      report(entry, fmt::format("{}: cannot be read: {}", path.string(), why), "");
      return true;
    }
    if (binary == Binary::passed_over && bytes->find('\0') != std::string::npos) return false;
    taken_.insert(error ? path : canonical);
    text_.parts.push_back(
        {path, static_cast<std::int64_t>(text_.bytes.size()), static_cast<std::int64_t>(bytes->size())});
    text_.bytes += *bytes;
    return true;
  }

  void report(const SourceEntry& entry, std::string message, std::string hint) {
    issues_.push_back(Issue{.file = entry.file,
                            .line = entry.line,
                            .key = std::string(key_),
                            .message = std::move(message),
                            .hint = std::move(hint)});
  }

  std::string_view key_;
  std::vector<Issue>& issues_;
  std::int64_t most_names_;
  Results results_;
  Text text_;
  std::set<fs::path> taken_;
};

}  // namespace

Text load_text(std::span<const SourceEntry> entries, std::string_view key, std::vector<Issue>& issues,
               std::int64_t most_names, const fs::path& results) {
  Loader loader(key, issues, most_names, results);
  const std::size_t before = issues.size();
  for (const SourceEntry& entry : entries) loader.load(entry);
  Text text = loader.take();
  if (text.bytes.empty() && issues.size() == before) {
    const SourceEntry first = entries.empty() ? SourceEntry{} : entries.front();
    issues.push_back(Issue{.file = first.file,
                           .line = first.line,
                           .key = std::string(key),
                           .message = "no text: every file is empty",
                           .hint = ""});
  }
  return text;
}

bool takes_file(std::span<const SourceEntry> entries, const fs::path& file, const fs::path& results) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return false;
  std::vector<Issue> ignored;
  const Text text = load_text(entries, "", ignored, kMostNames, results);
  return std::any_of(text.parts.begin(), text.parts.end(),
                     [&](const TextPart& part) { return fs::equivalent(part.path, file, error); });
}

}  // namespace cleave::data
