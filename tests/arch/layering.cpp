// The rules, one function each; find_violations() at the end strings them together.
#include "layering.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>

namespace cleave::arch {
namespace {

namespace fs = std::filesystem;
using Faults = std::vector<std::string>;

constexpr std::size_t kMaxLines = 600;

// Headers that only a row of the table can allow, by the name that the table uses.
const std::vector<std::pair<std::string, std::regex>> kByTable = {
    {"mpi", std::regex("mpi(-ext)?\\.h")},
    {"blis", std::regex("(blis.*/)?(blis|cblas)\\.h")},
    {"hdf5", std::regex("(hdf5.*/)?(hdf5(_hl)?\\.h|H5.*\\.h(pp)?)")},
    {"yaml-cpp", std::regex("yaml-cpp/.*")},
};

// Headers that a component may use when its CMakeLists.txt names the package.
const std::vector<std::pair<std::string, std::regex>> kByPackage = {
    {"nlohmann_json::nlohmann_json", std::regex("nlohmann/.*")},
    {"spdlog::spdlog", std::regex("spdlog/.*")},
    {"CLI11::CLI11", std::regex("CLI/.*")},
    {"PkgConfig::XXHASH", std::regex("(xxhash|xxh_x86dispatch)\\.h")},
};

// The C++ standard library, fmt, POSIX and the compiler: everywhere.
const std::regex kEverywhere(
    "[a-z_0-9]+|fmt/.*|(sys|netinet|arpa|linux)/[a-z_0-9]+\\.h|"
    "(unistd|fcntl|signal|poll|netdb|pthread|sched|spawn|dlfcn|termios|immintrin|cpuid|stdlib|stdio|string|errno|glob|"
    "fnmatch|ifaddrs|malloc)\\.h");

std::vector<std::string> read_lines(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(std::string text) {
  std::erase(text, '`');
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

std::set<std::string> list_of(const std::string& cell) {
  if (cell.empty() || cell == "–" || cell == "-") return {};
  const auto parts = split(cell, ',');
  return {parts.begin(), parts.end()};
}

bool is_source(const fs::path& path) { return path.extension() == ".hpp" || path.extension() == ".cpp"; }

std::vector<fs::path> sources_under(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && is_source(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string at(const fs::path& root, const fs::path& file, std::size_t line) {
  return fs::relative(file, root).generic_string() + ":" + std::to_string(line) + ": ";
}

struct CMakeNames {
  std::set<std::string> links, packages;
};

/// The arguments of cleave_component(): LINKS, and PACKAGES together with PRIVATE_PACKAGES.
std::optional<CMakeNames> read_component(const fs::path& cmake_lists) {
  std::string text;
  for (const auto& line : read_lines(cmake_lists)) text += line.substr(0, line.find('#')) + " ";
  const auto open = text.find("cleave_component(");
  if (open == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(open, text.find(')', open) - open));
  CMakeNames names;
  std::set<std::string>* list = nullptr;
  for (std::string word; words >> word;) {
    if (word == "LINKS") {
      list = &names.links;
    } else if (word == "PACKAGES" || word == "PRIVATE_PACKAGES") {
      list = &names.packages;
    } else if (list != nullptr) {
      list->insert(word);
    }
  }
  return names;
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
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  const auto lines = read_lines(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_match(lines[i], match, include)) continue;
    const std::string fault = fault_of(match[2].str(), match[1].str() == "\"", allowance);
    if (!fault.empty()) faults.push_back(at(root, file, i + 1) + fault);
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
  return faults;
}

}  // namespace cleave::arch
