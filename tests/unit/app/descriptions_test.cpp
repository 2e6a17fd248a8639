// Manual, completion and reference of inputs say what is declared, in their own syntax.
#include "cli/descriptions.hpp"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <string>

namespace cleave::app {
namespace {

using testing::HasSubstr;
using testing::Not;

class Descriptions : public testing::Test {
 protected:
  Descriptions() {
    CLI::App* train = program_.add_subcommand("train", ".hidden dot, back\\slash and a-hyphen");
    train->add_option("--steps,-s", steps_, "How many")->check(CLI::Range(1, 9));
    train->add_flag("--dry-run", dry_, "Nothing is done");
    program_.add_subcommand("info", "Describe a file")->add_option("file", file_, "FILE")->required();
    program_.footer("Exit codes: 0 good.");
  }
  CLI::App program_{"A program of a test.", "cleave"};
  int steps_ = 0;
  bool dry_ = false;
  std::string file_;
};

TEST_F(Descriptions, TheManualNamesCommandsOptionsAndArguments) {
  const std::string page = manual_page(program_);
  EXPECT_THAT(page, HasSubstr("\n.SS train\n"));
  EXPECT_THAT(page, HasSubstr("\n.SS info\n"));
  EXPECT_THAT(page, HasSubstr(".B \\-s, \\-\\-steps INT\nHow many\n"));
  EXPECT_THAT(page, HasSubstr(".B \\-\\-dry\\-run\nNothing is done\n"));
  EXPECT_THAT(page, HasSubstr("Arguments: FILE\n"));
  EXPECT_THAT(page, HasSubstr("Exit codes: 0 good."));
}

TEST_F(Descriptions, TextIsNoTroffRequest) {
  const std::string page = manual_page(program_);
  EXPECT_THAT(page, HasSubstr("\n\\&.hidden dot, back\\eslash and a\\-hyphen"));
  EXPECT_THAT(page, Not(HasSubstr("\n.hidden")));
}

TEST_F(Descriptions, CompletionOffersEachCommandItsOwnOptions) {
  const std::string script = bash_completion(program_);
  EXPECT_THAT(script, HasSubstr("train) options='-h --help -s --steps --dry-run' ;;"));
  EXPECT_THAT(script, HasSubstr("info) options='-h --help' ;;"));
  EXPECT_THAT(script, HasSubstr("complete -F _cleave cleave\n"));
}

TEST(InputReference, EveryKeyStandsInTheTableOfItsInnermostSection) {
  const std::string page = input_reference();
  const auto section = [&](const std::string& from, const std::string& to) {
    return page.substr(page.find(from), page.find(to) - page.find(from));
  };
  EXPECT_THAT(section("## `train`", "## `fleet`"), HasSubstr("| `steps` | integer, >= 1 | `100` |"));
  EXPECT_THAT(section("### `fleet.devices`", "### `fleet.links`"), HasSubstr("| `[].compute` |"));
  EXPECT_THAT(section("### `fleet.churn`", "## `server`"), HasSubstr("| `mean_session` |"));
  EXPECT_THAT(section("## `fleet`", "### `fleet.devices`"), HasSubstr("| `churn` | none \\| {keys} |"));
}

}  // namespace
}  // namespace cleave::app
