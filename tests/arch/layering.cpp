// The rules, one function each; find_violations() at the end strings them together.
#include "layering.hpp"

#include <algorithm>
#include <regex>

#include "names.hpp"
#include "packages.hpp"
#include "rights.hpp"
#include "tree.hpp"

namespace cleave::arch {
namespace {

namespace fs = std::filesystem;
using Faults = std::vector<std::string>;

constexpr std::size_t kMaxLines = 600;

// The C++ standard library, fmt, POSIX and the compiler: everywhere.
const std::regex kEverywhere(
    "[a-z_0-9]+|fmt/.*|(sys|net|netinet|arpa|linux)/[a-z_0-9]+\\.h|"
    "(unistd|fcntl|signal|poll|netdb|pthread|sched|spawn|dlfcn|termios|immintrin|cpuid|stdlib|stdio|string|errno|glob|"
    "fnmatch|ifaddrs|malloc)\\.h");

std::set<std::string> list_of(const std::string& cell) {
  if (cell.empty() || cell == "–" || cell == "-") return {};
  const auto parts = split(cell, ',');
  return {parts.begin(), parts.end()};
}

/// What one component may include.
struct Allowance {
  std::string component;
  const Row* row = nullptr;
  std::set<std::string> packages;
  fs::path local_folder;  ///< quoted includes without "cleave/" must lie here; empty: none are allowed
};

/// What is wrong with one #include, or nothing.
std::string fault_of(const std::string& header, bool quoted, const Allowance& allowance) {
  if (header.starts_with("cleave/")) {
    const auto parts = split(header, '/');
    const std::string& target = parts.at(1);
    if (parts.size() < 3 || target == allowance.component || allowance.row->may_include.contains(target)) return {};
    return allowance.component + " may not include " + target;
  }
  if (quoted) {
    if (header.find("..") != std::string::npos) return "leaves its folder: \"" + header + "\"";
    if (!allowance.local_folder.empty() && fs::exists(allowance.local_folder / header)) return {};
    return "\"" + header + "\" is no local header of " + allowance.component;
  }
  for (const auto& [name, pattern] : kByTable) {
    if (!std::regex_match(header, pattern)) continue;
    return allowance.row->outside.contains(name) ? "" : allowance.component + " may not include <" + header + ">";
  }
  for (const auto& [package, pattern] : kByPackage) {
    if (!std::regex_match(header, pattern)) continue;
    if (allowance.packages.contains(package)) return {};
    return "<" + header + "> without " + package + " in src/" + allowance.component + "/CMakeLists.txt";
  }
  if (std::regex_match(header, kEverywhere)) return {};
  return "<" + header + "> is not known to tests/arch/layering.cpp";
}

void check_includes(const fs::path& root, const fs::path& file, const Allowance& allowance, Faults& faults) {
  for (const auto& include : includes_of(file)) {
    const std::string fault = fault_of(include.header, include.quoted, allowance);
    if (!fault.empty()) faults.push_back(at(root, file, include.line) + fault);
  }
}

void check_component(const fs::path& root, const std::string& name, const Row& row, Faults& faults) {
  Allowance allowance{name, &row, {}, {}};
  const fs::path folder = root / "src" / name;
  if (fs::exists(folder)) {
    const auto cmake = read_component(folder / "CMakeLists.txt");
    if (!cmake) {
      faults.push_back("src/" + name + "/CMakeLists.txt: no cleave_component()");
    } else {
      allowance.packages = cmake->packages;
      for (const auto& link : cmake->links) {
        if (!row.may_include.contains(link)) faults.push_back("src/" + name + "/CMakeLists.txt: links " + link);
      }
      for (const auto& link : row.may_include) {
        if (!cmake->links.contains(link) && fs::exists(root / "src" / link / "CMakeLists.txt")) {
          faults.push_back("src/" + name + "/CMakeLists.txt: does not link " + link + ", which its row names");
        }
      }
    }
  }
  for (const auto& file : sources_under(root / "include" / "cleave" / name)) {
    check_includes(root, file, allowance, faults);
  }
  allowance.local_folder = folder;
  for (const auto& file : sources_under(folder)) check_includes(root, file, allowance, faults);
}

/// Every folder of components stands in the table, and none is a place for what belongs nowhere.
void check_folders(const fs::path& root, const Table& table, Faults& faults) {
  for (const fs::path& parent : {root / "src", root / "include" / "cleave"}) {
    if (!fs::exists(parent)) continue;
    for (const auto& entry : fs::directory_iterator(parent)) {
      const std::string name = entry.path().filename().string();
      const std::string where = fs::relative(entry.path(), root).generic_string();
      if (!entry.is_directory()) {
        if (is_source(entry.path())) faults.push_back(where + ": lies in no component");
      } else if (!table.contains(name) && !fs::is_empty(entry.path())) {
        faults.push_back(where + ": component without a row in the table");
      }
    }
  }
  static const std::set<std::string> nowhere = {"utils", "util", "common", "misc", "helpers"};
  for (const char* top : {"src", "include", "tests", "bench"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.is_directory() && nowhere.contains(entry.path().filename().string())) {
        faults.push_back(fs::relative(entry.path(), root).generic_string() + ": name the folder for what it holds");
      }
    }
  }
}

void check_files(const fs::path& root, Faults& faults) {
  for (const char* top : {"src", "include", "tests", "bench"}) {
    for (const auto& file : sources_under(root / top)) {
      const auto lines = read_lines(file);
      if (lines.size() > kMaxLines) {
        faults.push_back(at(root, file, lines.size()) + "more than " + std::to_string(kMaxLines) + " lines");
      }
      if (lines.empty() || !lines.front().starts_with("//")) {
        faults.push_back(at(root, file, 1) + "does not open with a comment that says what it is");
      }
    }
  }
  // Those of src/ and include/ are held to more by check_includes().
  for (const char* top : {"tests", "bench"}) {
    for (const auto& file : sources_under(root / top)) {
      for (const auto& include : includes_of(file)) {
        if (!include.header.starts_with("../")) continue;
        faults.push_back(at(root, file, include.line) + "leaves its folder: \"" + include.header + "\"");
      }
    }
  }
}

}  // namespace

Table read_table(const fs::path& markdown, Faults& faults) {
  Table table;
  bool inside = false;
  for (const auto& line : read_lines(markdown)) {
    const auto cells = line.starts_with("|") ? split(line.substr(1), '|') : std::vector<std::string>{};
    if (cells.size() < 5) {
      inside = false;
    } else if (cells[0] == "level" && cells[1] == "component") {
      inside = true;
    } else if (inside && cells[0].find("---") == std::string::npos) {
      const bool numeric = !cells[0].empty() && std::all_of(cells[0].begin(), cells[0].end(), ::isdigit);
      if (!numeric) faults.push_back("table: no level in row " + cells[1]);
      table[cells[1]] = {numeric ? std::stoi(cells[0]) : 0, list_of(cells[3]), list_of(cells[4])};
    }
  }
  if (table.empty()) faults.push_back(markdown.string() + ": no layering table");
  for (const auto& [name, row] : table) {
    for (const auto& other : row.may_include) {
      const auto found = table.find(other);
      if (found == table.end()) {
        faults.push_back("table: " + name + " names " + other + ", which has no row");
      } else if (found->second.level >= row.level) {
        faults.push_back("table: " + name + " would include " + other + ", which is not below it");
      }
    }
    for (const auto& header : row.outside) {
      const bool known =
          std::any_of(kByTable.begin(), kByTable.end(), [&](auto& rule) { return rule.first == header; });
      if (!known) faults.push_back("table: " + name + " names the outside header " + header + ", which has no rule");
    }
  }
  return table;
}

std::vector<std::string> find_violations(const fs::path& root) {
  Faults faults;
  const Table table = read_table(root / "docs" / "architecture.md", faults);
  check_folders(root, table, faults);
  for (const auto& [name, row] : table) check_component(root, name, row, faults);
  check_files(root, faults);
  const Faults unused = find_unused_rights(root, table);
  faults.insert(faults.end(), unused.begin(), unused.end());
  const Faults repeated = find_repeated_names(root, table);
  faults.insert(faults.end(), repeated.begin(), repeated.end());
  return faults;
}

}  // namespace cleave::arch
