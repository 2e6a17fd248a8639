// Rights that nobody uses: components and headers that a row allows in vain, packages that are linked in vain, and
// public headers that no other component needs.
#include "rights.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <string_view>

#include "packages.hpp"
#include "tree.hpp"

namespace cleave::arch {
namespace {

namespace fs = std::filesystem;
using Faults = std::vector<std::string>;

/// Every header that the component's files include, public or not.
std::set<std::string> headers_used(const fs::path& root, const std::string& component) {
  std::set<std::string> headers;
  for (const fs::path& folder : {root / "include" / "cleave" / component, root / "src" / component}) {
    for (const auto& file : sources_under(folder)) {
      for (const auto& include : includes_of(file)) headers.insert(include.header);
    }
  }
  return headers;
}

bool any_matches(const std::set<std::string>& headers, const std::regex& pattern) {
  return std::any_of(headers.begin(), headers.end(), [&](auto& header) { return std::regex_match(header, pattern); });
}

void check_row(const Table& table, const std::string& name, const std::set<std::string>& headers, Faults& faults) {
  const Row& row = table.at(name);
  for (const auto& other : row.may_include) {
    if (!table.contains(other)) continue;  // which read_table() reports
    const std::string folder = "cleave/" + other + "/";
    const bool used = std::any_of(headers.begin(), headers.end(), [&](auto& h) { return h.starts_with(folder); });
    if (!used) faults.push_back("table: " + name + " may include " + other + ", but none of its files does");
  }
  for (const auto& [outside, pattern] : kByTable) {
    if (row.outside.contains(outside) && !any_matches(headers, pattern)) {
      faults.push_back("table: " + name + " may include headers of " + outside + ", but none of its files does");
    }
  }
}

void check_packages(const fs::path& root, const std::string& name, const std::set<std::string>& headers,
                    Faults& faults) {
  const std::string cmake = "src/" + name + "/CMakeLists.txt";
  const auto declared = read_component(root / cmake);
  if (!declared) return;  // which find_violations() reports
  for (const auto& package : declared->packages) {
    bool known = false, used = false;
    for (const HeaderRules* rules : {&kByPackage, &kShowUse}) {
      for (const auto& [target, pattern] : *rules) {
        known = known || target == package;
        used = used || (target == package && any_matches(headers, pattern));
      }
    }
    if (!known) faults.push_back(cmake + ": " + package + " is not known to tests/arch/packages.hpp");
    if (known && !used) faults.push_back(cmake + ": names " + package + ", but no file includes a header of it");
  }
}

/// The component of `root`/include/cleave/COMPONENT/... or `root`/src/COMPONENT/...; for a component's own tests, it
/// too.
std::string owner_of(const fs::path& root, const fs::path& file) {
  const auto parts = split(fs::relative(file, root).generic_string(), '/');
  if (parts.size() > 2 && parts[0] == "src") return parts[1];
  if (parts.size() > 3 && (parts[0] == "include" || (parts[0] == "tests" && parts[1] == "unit"))) return parts[2];
  return {};
}

/// Public headers that somebody outside includes, and what those include in turn.
std::set<std::string> called_headers(const fs::path& root) {
  std::map<std::string, std::vector<std::string>> includes;  // of each public header
  std::vector<std::string> found;
  for (const char* top : {"include", "src", "bench", "tests"}) {
    for (const auto& file : sources_under(root / top)) {
      const std::string owner = owner_of(root, file);
      const bool is_public = std::string_view(top) == "include";
      const std::string own_name = is_public ? fs::relative(file, root / "include").generic_string() : std::string();
      for (const auto& include : includes_of(file)) {
        if (!include.header.starts_with("cleave/")) continue;
        if (is_public) includes[own_name].push_back(include.header);
        if (split(include.header, '/').at(1) != owner) found.push_back(include.header);
      }
    }
  }
  std::set<std::string> called;
  while (!found.empty()) {
    const std::string header = found.back();
    found.pop_back();
    if (!called.insert(header).second) continue;
    found.insert(found.end(), includes[header].begin(), includes[header].end());
  }
  return called;
}

/// Names of classes that are declared, but not defined, in a namespace of the file: `class Pace;`, with the line.
std::map<std::string, std::size_t> forward_declared(const std::vector<std::string>& lines) {
  static const std::regex form(R"((?:class|struct) (\w+);.*)");
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (std::regex_match(lines[i], match, form)) names.emplace(match[1], i + 1);
  }
  return names;
}

/// A caller can do nothing with a class that no public header defines. One that a class keeps its insides in is
/// declared within it: `struct Impl;`.
void check_forward_declarations(const fs::path& root, Faults& faults) {
  static const std::regex definition(R"((?:class|struct) (\w+)[^;]*)");
  const auto files = sources_under(root / "include");
  std::set<std::string> defined;
  for (const auto& file : files) {
    for (const auto& line : read_lines(file)) {
      if (!line.starts_with("class ") && !line.starts_with("struct ")) continue;
      std::smatch match;
      if (std::regex_match(line, match, definition)) defined.insert(match[1]);
    }
  }
  for (const auto& file : files) {
    const auto lines = read_lines(file);
    for (const auto& [name, line] : forward_declared(lines)) {
      if (defined.contains(name)) continue;
      faults.push_back(at(root, file, line) + "declares " + name + ", which no public header defines");
    }
  }
}

}  // namespace

std::vector<std::string> find_unused_rights(const fs::path& root, const Table& table) {
  Faults faults;
  for (const auto& [name, row] : table) {
    if (!fs::exists(root / "src" / name) && !fs::exists(root / "include" / "cleave" / name)) continue;
    const auto headers = headers_used(root, name);
    check_row(table, name, headers, faults);
    check_packages(root, name, headers, faults);
  }
  const auto called = called_headers(root);
  for (const auto& file : sources_under(root / "include")) {
    const std::string header = fs::relative(file, root / "include").generic_string();
    if (!called.contains(header)) faults.push_back("include/" + header + ": no other component includes it");
  }
  check_forward_declarations(root, faults);
  return faults;
}

}  // namespace cleave::arch
