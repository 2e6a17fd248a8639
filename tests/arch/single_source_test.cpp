// Nothing stands twice: no second copy of an enumeration, no default of an input key beside the struct that has it, and
// the window of a rank in one place.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace cleave::arch {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

struct Source {
  std::string file, text;  // without comments
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Source> sources_under(const std::vector<std::string>& folders) {
  std::vector<Source> sources;
  static const std::regex comment("//[^\n]*");
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(CLEAVE_SOURCE_DIR) / folder)) {
      const fs::path& path = entry.path();
      if (path.extension() != ".hpp" && path.extension() != ".cpp") continue;
      sources.push_back(
          {fs::relative(path, CLEAVE_SOURCE_DIR).generic_string(), std::regex_replace(read(path), comment, "")});
    }
  }
  return sources;
}

// "off, sample, all" of each enumeration, its enumerators sorted, with where it stands; those of one or two enumerators
// are too small to tell a copy from a coincidence.
std::map<std::string, std::vector<std::string>> enumerations(const std::vector<Source>& sources) {
  static const std::regex declaration(R"(enum class (\w+)[^{};]*\{([^}]*)\})"), enumerator(R"((\w+)\s*(=[^,]*)?(,|$))");
  std::map<std::string, std::vector<std::string>> found;
  for (const Source& source : sources) {
    for (std::sregex_iterator it(source.text.begin(), source.text.end(), declaration), end; it != end; ++it) {
      const std::string body = (*it)[2].str();
      std::set<std::string> names;
      for (std::sregex_iterator e(body.begin(), body.end(), enumerator); e != end; ++e) names.insert((*e)[1].str());
      if (names.size() < 3) continue;
      std::string key;
      for (const std::string& name : names) key += name + ", ";
      found[key].push_back(source.file + ": " + (*it)[1].str());
    }
  }
  return found;
}

std::vector<std::string> second_copies(const std::vector<Source>& sources) {
  std::vector<std::string> copies;
  for (const auto& [enumerators, places] : enumerations(sources)) {
    for (std::size_t i = 1; i < places.size(); ++i) copies.push_back(places[0] + " and " + places[i]);
  }
  return copies;
}

// A key's default is the initial value of the member that it is read into: a number, a size or a truth value beside it
// would be a second one.
std::vector<std::string> literal_defaults(const std::vector<Source>& sources) {
  static const std::regex literal(R"(default_value\s*=\s*((-?[0-9]|true\b|false\b|[A-Z]\w*\(\s*-?[0-9])[^,}]*))");
  std::vector<std::string> found;
  for (const Source& source : sources) {
    for (std::sregex_iterator it(source.text.begin(), source.text.end(), literal), end; it != end; ++it) {
      found.push_back(source.file + ": default_value = " + (*it)[1].str());
    }
  }
  return found;
}

TEST(SingleSource, NoEnumerationStandsTwice) {
  const auto sources = sources_under({"include", "src"});
  EXPECT_GT(enumerations(sources).size(), 20U);  // the search does find them
  EXPECT_THAT(second_copies(sources), IsEmpty());
}

TEST(SingleSource, NoDefaultStandsBesideItsMember) {
  const auto sources = sources_under({"src/app/input"});
  EXPECT_GT(sources.size(), 5U);
  EXPECT_THAT(literal_defaults(sources), IsEmpty());
}

TEST(SingleSource, TheWindowOfARankStandsInOnePlace) {
  static const std::regex window(R"(k(Window\w*|TaskletsAhead)\s*=)");
  std::set<std::string> places;
  for (const Source& source : sources_under({"src/server", "include/cleave/server", "src/app"})) {
    if (std::regex_search(source.text, window)) places.insert(source.file);
  }
  EXPECT_THAT(places, ElementsAre("src/server/window.hpp"));
}

TEST(SingleSource, TheSearchesFindWhatTheyLookFor) {
  const std::vector<Source> twice{{"a.hpp", "enum class Mode : std::uint8_t { off, sample, all, audit };"},
                                  {"b.hpp", "enum class VerifyMode { audit, off, all = 3, sample };"},
                                  {"c.hpp", "enum class Other { off, sample, all };"}};
  EXPECT_THAT(second_copies(twice), ElementsAre("a.hpp: Mode and b.hpp: VerifyMode"));
  const std::vector<Source> beside{
      {"x.cpp",
       "in.real(\"lr\", {.default_value = 1e-3}); in.seconds({.default_value = Seconds(10)});"
       "in.boolean({.default_value = true}); in.integer({.default_value = t.steps});"}};
  EXPECT_THAT(literal_defaults(beside), SizeIs(3));
}

}  // namespace
}  // namespace cleave::arch
