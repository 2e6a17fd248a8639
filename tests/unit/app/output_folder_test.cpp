// Which folders a run, or a simulation, may write to.
#include "output/output_folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

class OutputFolder : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(run_); }
  void TearDown() override { fs::remove_all(top_); }
  fs::path top_ = fs::temp_directory_path() / ("cleave-output-" + std::to_string(::getpid()));
  fs::path run_ = top_ / "run";
  Input input_;
};

TEST_F(OutputFolder, AnInputOfSomebodysOwnIsNotReplaced) {
  EXPECT_NO_THROW(refuse_unfit_folder(run_, input_));
  EXPECT_NO_THROW(refuse_unfit_folder(top_ / "no folder", input_));
  replace_file(run_ / "input.yaml", "train:\n  steps: 4  # file\n  batch: 8  # default\n");
  EXPECT_NO_THROW(refuse_unfit_folder(run_, input_));
  replace_file(run_ / "input.yaml", "train: {steps: 4}\n");
  EXPECT_THROW(refuse_unfit_folder(run_, input_), InputError);
}

TEST_F(OutputFolder, AFileIsNone) {
  replace_file(top_ / "file", "");
  fs::create_symlink(top_ / "nowhere", top_ / "link");
  for (const char* name : {"file", "file/run", "link", "link/run"})
    EXPECT_THROW(refuse_unfit_folder(top_ / name, input_), EnvironmentError) << name;
  fs::create_directory_symlink(run_, top_ / "to a run");
  EXPECT_NO_THROW(refuse_unfit_folder(top_ / "to a run" / "new", input_));
}

// Whoever writes to a pipe waits until somebody reads from it.
TEST_F(OutputFolder, HasNoPipesUnderNamesOfARun) {
  ASSERT_EQ(::mkfifo((run_ / "other").c_str(), 0600), 0);
  EXPECT_NO_THROW(refuse_unfit_folder(run_, input_));
  for (const char* name : {"input.yaml", "timeline.json", "log.txt"}) {
    ASSERT_EQ(::mkfifo((run_ / name).c_str(), 0600), 0);
    EXPECT_THROW(refuse_unfit_folder(run_, input_), EnvironmentError) << name;
    fs::remove(run_ / name);
  }
}

}  // namespace
}  // namespace cleave::app
