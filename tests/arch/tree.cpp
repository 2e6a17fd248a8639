// Reading a tree of sources: see tree.hpp.
#include "tree.hpp"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

namespace cleave::arch {

namespace fs = std::filesystem;

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

std::vector<Include> includes_of(const fs::path& file) {
  static const std::regex form(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<Include> includes;
  const auto lines = read_lines(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("include") == std::string::npos) continue;  // quicker than the expression
    std::smatch match;
    if (std::regex_match(lines[i], match, form)) includes.push_back({match[2], match[1] == "\"", i + 1});
  }
  return includes;
}

std::optional<Declared> read_component(const fs::path& cmake_lists) {
  std::string text;
  for (const auto& line : read_lines(cmake_lists)) text += line.substr(0, line.find('#')) + " ";
  const auto open = text.find("cleave_component(");
  if (open == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(open, text.find(')', open) - open));
  Declared names;
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

}  // namespace cleave::arch
