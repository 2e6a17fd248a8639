// Reads sources line by line: anonymous namespaces and what they define begin in the first column.
#include "names.hpp"

#include <map>
#include <regex>

#include "tree.hpp"

namespace cleave::arch {
namespace {

namespace fs = std::filesystem;

/// The types and constants that a line defines.
std::vector<std::string> defined_in(const std::string& line) {
  static const std::regex type("(?:struct|class|enum class|using)\\s+(\\w+)\\s*(?:final|:[^:]|\\{|=).*"),
      constant("(?:inline |static )?const(?:expr)?\\s[^(]*"), name("\\b(k[A-Z]\\w*)\\s*(?:=|\\{|\\[)");
  std::smatch match;
  if (std::regex_match(line, match, type)) return {match[1]};
  std::vector<std::string> names;
  const std::string head = line.substr(0, line.find('('));
  if (!std::regex_match(head, constant)) return names;
  for (auto at = std::sregex_iterator(head.begin(), head.end(), name); at != std::sregex_iterator(); ++at)
    names.push_back((*at)[1]);
  return names;
}

bool is_compiled_alone(const fs::path& file) {
  const std::string stem = file.stem().string();
  return stem.ends_with("_avx2") || stem.ends_with("_avx512");
}

}  // namespace

std::vector<std::string> find_repeated_names(const fs::path& root, const Table& table) {
  std::vector<std::string> faults;
  for (const auto& [component, row] : table) {
    std::map<std::string, fs::path> owners;
    for (const auto& file : sources_under(root / "src" / component)) {
      if (file.extension() != ".cpp" || is_compiled_alone(file)) continue;
      bool inside = false;
      const std::vector<std::string> lines = read_lines(file);
      for (std::size_t i = 0; i < lines.size(); ++i) {
        if (lines[i].starts_with("namespace {")) inside = true;
        if (lines[i].starts_with("}  // namespace")) inside = false;
        if (!inside) continue;
        for (const std::string& name : defined_in(lines[i])) {
          const auto [owner, is_new] = owners.emplace(name, file);
          if (!is_new && owner->second != file)
            faults.push_back(at(root, file, i + 1) + name + " is in " +
                             fs::relative(owner->second, root).generic_string() + " too");
        }
      }
    }
  }
  return faults;
}

}  // namespace cleave::arch
