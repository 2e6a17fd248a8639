// Holds the sources to the layering table of docs/architecture.md, which is the only place where the rule is written.
//
// layering_test.cpp runs it over the project and over small trees made up to break one rule each.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace cleave::arch {

/// One row of the table.
struct Row {
  int level = 0;
  std::set<std::string> may_include;  ///< components
  std::set<std::string> outside;      ///< outside headers allowed only where a row names them: mpi, blis, ...
};

using Table = std::map<std::string, Row>;

/// Reads the table whose header names the columns `level | component | what it is | may include | outside header`.
/// Faults of the table itself (unreadable cells, a row that includes its own or a higher level) go to `faults`.
[[nodiscard]] Table read_table(const std::filesystem::path& markdown, std::vector<std::string>& faults);

/// Everything in the tree under `root` that breaks a rule, as `file:line: what is wrong`; empty when all is well.
[[nodiscard]] std::vector<std::string> find_violations(const std::filesystem::path& root);

}  // namespace cleave::arch
