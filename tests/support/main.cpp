// The main function of unit tests. All files of a component are one program, since the headers of GoogleTest and of the
// component take most of the time of a build; CTest runs each file by itself:
//
//   test_plan                       every test
//   test_plan tiling_2d slabs       the tests of tiling_2d_test.cpp and of slabs_test.cpp
//   test_plan --gtest_filter=...    GoogleTest's own choice, which goes before names: death tests start the program
//   again
//                                   with its arguments and the one test
//
// A name that no file has ends it with exit code 2, so that a registration cannot pass without having run anything.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

namespace {

// "tiling_2d" of "/.../tests/unit/plan/tiling_2d_test.cpp".
std::string name_of(const char* file) {
  std::string name = std::filesystem::path(file).stem().string();
  const std::string ending = "_test";
  if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  return name;
}

// For each file the tests that it holds, as a filter: "Suite.Test:Suite.Other:".
std::map<std::string, std::string> filters_by_file() {
  std::map<std::string, std::string> filters;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      filters[name_of(test.file())] += std::string(suite.name()) + '.' + test.name() + ':';
    }
  }
  return filters;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 1) return RUN_ALL_TESTS();
  const std::map<std::string, std::string> filters = filters_by_file();
  std::string chosen;
  for (int i = 1; i < argc; ++i) {
    const auto found = filters.find(argv[i]);
    if (found == filters.end()) {
      std::fprintf(stderr, "%s: no test in a file %s_test.cpp\n", argv[0], argv[i]);
      return 2;
    }
    chosen += found->second;
  }
  if (::testing::GTEST_FLAG(filter) == "*") ::testing::GTEST_FLAG(filter) = chosen;
  return RUN_ALL_TESTS();
}
