// A small tree of sources to break rules in.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "layering.hpp"

namespace cleave::arch {

namespace fs = std::filesystem;

/// A tree of two components, `base` below `plan`, and a program of bench/ that plans. It breaks no rule until a test
/// adds to it.
class MadeUpTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("cleave-arch-" + std::to_string(getpid()));
    fs::remove_all(root_);
    write("docs/architecture.md", table("base", "–"));
    write("src/base/CMakeLists.txt", "cleave_component(base)\n");
    write("src/plan/CMakeLists.txt", "cleave_component(plan LINKS base)  # comment\n");
    write("include/cleave/base/units.hpp", "// Units.\n#include <cstdint>\n");
    write("include/cleave/plan/plan.hpp", "// Plans.\n#include \"cleave/base/units.hpp\"\n");
    write("bench/table.cpp", "// Table.\n#include \"cleave/plan/plan.hpp\"\n");
    write("src/plan/tiling.hpp", "// Tiling.\n");
    write("src/plan/tiling.cpp", "// Tiling.\n#include \"tiling.hpp\"\n#include \"cleave/plan/plan.hpp\"\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  static std::string table(const std::string& plan_includes, const std::string& plan_outside) {
    return "# Text\n\n| level | component | what it is | may include | outside header |\n|---|---|---|---|---|\n"
           "| 0 | base | units | – | – |\n| 2 | `plan` | plans | " +
           plan_includes + " | " + plan_outside + " |\n\nMore | text\n";
  }
  [[nodiscard]] std::vector<std::string> violations() const { return find_violations(root_); }

  fs::path root_;
};

}  // namespace cleave::arch
