// The check notices each kind of right that nobody uses, in a made-up tree, and says which one it is.
#include "rights.hpp"

#include <gmock/gmock.h>

#include "made_up_tree.hpp"

namespace cleave::arch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Rights : public MadeUpTree {};

TEST_F(Rights, ComponentThatNoFileIncludes) {
  write("include/cleave/plan/plan.hpp", "// Plans.\n");
  write("bench/table.cpp", "// Table.\n#include \"cleave/base/units.hpp\"\n#include \"cleave/plan/plan.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("table: plan may include base, but none of its files does"));
}

TEST_F(Rights, OneFileOfTheComponentIsEnough) {
  write("include/cleave/plan/plan.hpp", "// Plans.\n");
  write("src/plan/search/regions.cpp", "// Regions.\n#include \"cleave/base/units.hpp\"\n");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(Rights, OutsideHeaderThatNoFileIncludes) {
  write("docs/architecture.md", table("base", "hdf5, yaml-cpp"));
  write("src/plan/files.cpp", "// Files.\n#include <yaml-cpp/yaml.h>\n");
  EXPECT_THAT(violations(), ElementsAre("table: plan may include headers of hdf5, but none of its files does"));
}

TEST_F(Rights, PackageThatNoFileIncludes) {
  write("src/plan/CMakeLists.txt",
        "cleave_component(plan LINKS base PACKAGES spdlog::spdlog PRIVATE_PACKAGES Threads::Threads)\n");
  EXPECT_THAT(violations(),
              ElementsAre("src/plan/CMakeLists.txt: names Threads::Threads, but no file includes a header of it",
                          "src/plan/CMakeLists.txt: names spdlog::spdlog, but no file includes a header of it"));
  write("src/plan/log.cpp", "// Log.\n#include <spdlog/logger.h>\n\n#include <mutex>\n");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(Rights, PackageWithoutARule) {
  write("src/plan/CMakeLists.txt", "cleave_component(plan LINKS base PRIVATE_PACKAGES Boost::asio)\n");
  EXPECT_THAT(violations(),
              ElementsAre("src/plan/CMakeLists.txt: Boost::asio is not known to tests/arch/packages.hpp"));
}

TEST_F(Rights, PublicHeaderThatNobodyElseIncludes) {
  write("include/cleave/plan/panels.hpp", "// Panels.\n");
  write("src/plan/panels.cpp", "// Panels.\n#include \"cleave/plan/panels.hpp\"\n");
  write("tests/unit/plan/panels_test.cpp", "// Panels.\n#include \"cleave/plan/panels.hpp\"\n");
  EXPECT_THAT(violations(), ElementsAre("include/cleave/plan/panels.hpp: no other component includes it"));
  // A header that callers get with another one is theirs, too.
  write("include/cleave/plan/plan.hpp",
        "// Plans.\n#include \"cleave/base/units.hpp\"\n#include \"cleave/plan/panels.hpp\"\n");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(Rights, ClassThatCallersCannotUse) {
  const std::string head = "// Plans.\n#include \"cleave/base/units.hpp\"\nclass Search;\n";
  write("include/cleave/plan/plan.hpp", head + "void run(Search& search);\n");
  EXPECT_THAT(violations(),
              ElementsAre("include/cleave/plan/plan.hpp:3: declares Search, which no public header defines"));
  // A class may hide its own insides behind a pointer, under a name of its own.
  write("include/cleave/plan/plan.hpp", head + "class Plan {\n private:\n  Search* search_;\n};\n");
  EXPECT_THAT(violations(), testing::SizeIs(1));
  write("include/cleave/plan/plan.hpp",
        "// Plans.\n#include \"cleave/base/units.hpp\"\nclass Plan {\n private:\n  struct Search;\n  Search* "
        "search_;\n};\n");
  EXPECT_THAT(violations(), IsEmpty());
  write("include/cleave/plan/plan.hpp", head + "class Search final : public Base {\n};\nvoid run(Search& search);\n");
  EXPECT_THAT(violations(), IsEmpty());
}

}  // namespace
}  // namespace cleave::arch
