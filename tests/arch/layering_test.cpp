// The project keeps to its layering table; and the check itself notices each kind of break in a made-up tree.
#include "layering.hpp"

#include <gmock/gmock.h>

#include "made_up_tree.hpp"

namespace cleave::arch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Layering, TheProjectKeepsToItsTable) { EXPECT_THAT(find_violations(CLEAVE_SOURCE_DIR), IsEmpty()); }

TEST(Layering, TheTableIsReadWhole) {
  std::vector<std::string> faults;
  const Table table = read_table(fs::path(CLEAVE_SOURCE_DIR) / "docs" / "architecture.md", faults);
  EXPECT_THAT(faults, IsEmpty());
  EXPECT_EQ(table.size(), 17u);
  EXPECT_EQ(table.at("sched").may_include, (std::set<std::string>{"base", "model", "fleet", "timing", "plan"}));
  EXPECT_EQ(table.at("kernels").outside, std::set<std::string>{"blis"});
  EXPECT_FALSE(table.at("server").may_include.contains("device"));
}

TEST_F(MadeUpTree, IsSoundAsItStands) { EXPECT_THAT(violations(), IsEmpty()); }

TEST_F(MadeUpTree, IncludeUpward) {
  write("src/base/clock.cpp", "// Clock.\n#include <ctime>\n#include \"cleave/plan/plan.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("src/base/clock.cpp:3: base may not include plan"));
}

TEST_F(MadeUpTree, IncludeUpwardFromAPublicHeader) {
  write("include/cleave/base/units.hpp", "// Units.\n#  include <cleave/plan/plan.hpp>\n");
  EXPECT_THAT(violations(), ElementsAre("include/cleave/base/units.hpp:2: base may not include plan"));
}

TEST_F(MadeUpTree, OutsideHeaders) {
  for (const char* header :
       {"mpi.h", "blis.h", "blis-openmp/blis.h", "cblas.h", "hdf5.h", "H5Cpp.h", "yaml-cpp/yaml.h"}) {
    write("src/plan/cost.cpp", std::string("// Cost.\n#include <") + header + ">\n");
    EXPECT_THAT(violations(), ElementsAre(HasSubstr("plan may not include <"))) << header;
  }
  write("docs/architecture.md", table("base", "yaml-cpp"));
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(MadeUpTree, PackageThatCMakeDoesNotName) {
  write("src/plan/cost.cpp", "// Cost.\n#include <nlohmann/json.hpp>\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("without nlohmann_json::nlohmann_json")));
  write("src/plan/CMakeLists.txt",
        "cleave_component(plan\n LINKS base\n PRIVATE_PACKAGES nlohmann_json::nlohmann_json)");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(MadeUpTree, NameInTwoAnonymousNamespaces) {
  write("src/plan/cost.cpp", "// Cost.\nnamespace {\nconstexpr int kMost = 2, kLeast = 1;\n}  // namespace\n");
  write("src/plan/fit.cpp",
        "// Fit.\nnamespace {\nconstexpr int kMost{3};\n}  // namespace\nconstexpr int kLeast = 1;\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/fit.cpp:3: kMost is in src/plan/cost.cpp too"));
  write("src/plan/fit.cpp", "// Fit.\nnamespace {\nclass Most {\n};\n}  // namespace\n");
  EXPECT_THAT(violations(), IsEmpty());
  write("src/plan/cost.cpp", "// Cost.\nnamespace {\nstruct Most : Base {\n};\n}  // namespace\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/fit.cpp:3: Most is in src/plan/cost.cpp too"));
  write("src/base/clock.cpp", "// Clock.\nnamespace {\nstruct Most {\n};\n}  // namespace\n");
  EXPECT_THAT(violations(), SizeIs(1));
}

TEST_F(MadeUpTree, UnknownOutsideHeader) {
  write("src/plan/cost.cpp", "// Cost.\n#include <boost/asio.hpp>\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("<boost/asio.hpp> is not known")));
}

TEST_F(MadeUpTree, HeaderOfAnotherFolder) {
  write("src/base/internal.hpp", "// Internal.\n");
  write("src/plan/cost.cpp", "// Cost.\n#include \"internal.hpp\"\n#include \"../base/internal.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/cost.cpp:2: \"internal.hpp\" is no local header of plan",
                                        "src/plan/cost.cpp:3: leaves its folder: \"../base/internal.hpp\""));
}

TEST_F(MadeUpTree, HeadersOfAFolderAreNamedFromTheComponentOn) {
  write("src/plan/search/regions.hpp", "// Regions.\n#include \"tiling.hpp\"\n");
  write("src/plan/search/regions.cpp", "// Regions.\n#include \"search/regions.hpp\"\n");
  EXPECT_THAT(violations(), IsEmpty());
  write("src/plan/search/regions.cpp", "// Regions.\n#include \"regions.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/search/regions.cpp:2: \"regions.hpp\" is no local header of plan"));
}

TEST_F(MadeUpTree, PublicHeaderThatIncludesAnInternalOne) {
  write("include/cleave/plan/plan.hpp", "// Plans.\n#include \"cleave/base/units.hpp\"\n#include \"tiling.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("is no local header of plan")));
}

TEST_F(MadeUpTree, TestThatLeavesItsFolder) {
  write("tests/unit/plan/tiling_test.cpp", "// Tilings.\n#include \"../../../src/plan/tiling.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("tests/unit/plan/tiling_test.cpp:2: leaves its folder: "
                                        "\"../../../src/plan/tiling.hpp\""));
}

TEST_F(MadeUpTree, LinksThatDoNotRepeatTheRow) {
  write("src/base/CMakeLists.txt", "cleave_component(base LINKS plan)\n");
  write("src/plan/CMakeLists.txt", "cleave_component(plan)\n");
  EXPECT_THAT(violations(), ElementsAre("src/base/CMakeLists.txt: links plan",
                                        "src/plan/CMakeLists.txt: does not link base, which its row names"));
}

TEST_F(MadeUpTree, ComponentWithoutARow) {
  write("src/extra/extra.cpp", "// Extra.\n");
  EXPECT_THAT(violations(), ElementsAre("src/extra: component without a row in the table"));
}

TEST_F(MadeUpTree, FolderForEverything) {
  write("tests/unit/utils/tools.hpp", "// Tools.\n");
  write("src/plan/common/tools.hpp", "// Tools.\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/common: name the folder for what it holds",
                                        "tests/unit/utils: name the folder for what it holds"));
}

TEST_F(MadeUpTree, LongFile) {
  std::string text = "// Long.\n";
  for (int i = 0; i < 599; ++i) text += "\n";
  write("src/plan/long.cpp", text);
  EXPECT_THAT(violations(), IsEmpty());
  write("src/plan/long.cpp", text + "\n");
  EXPECT_THAT(violations(), ElementsAre("src/plan/long.cpp:601: more than 600 lines"));
}

TEST_F(MadeUpTree, FileWithoutAnOpeningComment) {
  write("tests/unit/plan/tiling_test.cpp", "#include <gtest/gtest.h>\n");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("tests/unit/plan/tiling_test.cpp:1: does not open with a comment")));
}

TEST_F(MadeUpTree, TableThatIncludesUpward) {
  write("docs/architecture.md", table("base, sched", "–") + "\n");
  EXPECT_THAT(violations(), ElementsAre("table: plan names sched, which has no row"));
  write("docs/architecture.md", table("base, plan", "–"));
  EXPECT_THAT(violations(), testing::Contains("table: plan would include plan, which is not below it"));
}

TEST_F(MadeUpTree, NoTable) {
  write("docs/architecture.md", "# Text\n");
  EXPECT_THAT(violations(), testing::Contains(HasSubstr("no layering table")));
}

}  // namespace
}  // namespace cleave::arch
