// Going back and going on from elsewhere: what is moved, what stays, and that nothing is deleted.
#include "output/set_aside.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SetAside : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(run_); }
  void TearDown() override { fs::remove_all(top_); }

  static void lines(const fs::path& folder, int last) {
    std::ofstream out(folder / "metrics.jsonl");
    for (int step = 1; step <= last; ++step) out << "{\"step\": " << step << "}\n";
  }
  static fs::path checkpoint(const fs::path& folder, int step, const std::string& text) {
    const fs::path file = folder / ("checkpoint-" + std::to_string(step) + ".h5");
    replace_file(file, text);
    return file;
  }
  static std::set<std::string> names(const fs::path& folder) {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder)) found.insert(entry.path().filename().string());
    return found;
  }
  fs::path top_ = fs::temp_directory_path() / ("cleave-aside-" + std::to_string(::getpid()));
  fs::path run_ = top_ / "run";
};

TEST_F(SetAside, GoingBackMovesLaterCheckpointsAndCopiesTheRest) {
  for (const int step : {4, 18, 20}) checkpoint(run_, step, std::string("a").append(std::to_string(step)));
  lines(run_, 20);
  replace_file(run_ / "input.yaml", "old");
  replace_file(run_ / "a large text.txt", "somebody's own");
  replace_file(run_ / "lock", "");
  const Branched branched = begin_branch(run_, {.from = run_ / "checkpoint-4.h5", .step = 4});
  EXPECT_EQ(branched.from, run_ / "checkpoint-4.h5");
  ASSERT_EQ(branched.set_aside, top_ / "run.1");
  EXPECT_THAT(names(run_), ElementsAre("a large text.txt", "checkpoint-4.h5", "input.yaml", "lock", "metrics.jsonl"));
  EXPECT_THAT(names(top_ / "run.1"),
              ElementsAre("checkpoint-18.h5", "checkpoint-20.h5", "input.yaml", "metrics.jsonl"));
  EXPECT_EQ(read_file(top_ / "run.1" / "checkpoint-20.h5"), "a20");
  EXPECT_EQ(read_file(top_ / "run.1" / "metrics.jsonl"), read_file(run_ / "metrics.jsonl"));
}

TEST_F(SetAside, AnEarlierRunLeavesWithItsFolder) {
  for (const int step : {2, 4}) checkpoint(run_, step, "a");
  lines(run_, 4);
  replace_file(run_ / "lock", "");
  replace_file(run_ / "checkpoint-2.h5.taken_back", "b");
  EXPECT_EQ(move_run(run_), top_ / "run.1");
  EXPECT_FALSE(fs::exists(run_));
  EXPECT_THAT(names(top_ / "run.1"),
              ElementsAre("checkpoint-2.h5", "checkpoint-2.h5.taken_back", "checkpoint-4.h5", "lock", "metrics.jsonl"));
}

// Such as `output.dir: .`, beside the input and the text; or a folder of runs.
TEST_F(SetAside, AnEarlierRunLeavesWhatIsNotItsOwn) {
  for (const int step : {2, 4}) checkpoint(run_, step, "a");
  lines(run_, 4);
  for (const char* name : {"lock", "log.txt", "mine.yaml", "model.h5", "checkpoint-04.h5"})
    replace_file(run_ / name, name);
  fs::create_directories(run_ / "other-run");
  EXPECT_EQ(move_run(run_), top_ / "run.1");
  EXPECT_THAT(names(run_), ElementsAre("checkpoint-04.h5", "lock", "mine.yaml", "model.h5", "other-run"));
  EXPECT_THAT(names(top_ / "run.1"), ElementsAre("checkpoint-2.h5", "checkpoint-4.h5", "log.txt", "metrics.jsonl"));
}

// As to a disk with more room: the next run is to be there, too.
TEST_F(SetAside, AFolderThatIsALinkStays) {
  const fs::path disk = top_ / "disk", link = top_ / "link";
  fs::create_directories(disk / "real");
  fs::create_directory_symlink(disk / "real", link);
  for (const int step : {2, 4}) checkpoint(link, step, "a");
  lines(link, 4);
  EXPECT_EQ(move_run(link / ""), disk / "real.1");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_THAT(names(link), IsEmpty());
  EXPECT_THAT(names(disk / "real.1"), ElementsAre("checkpoint-2.h5", "checkpoint-4.h5", "metrics.jsonl"));
  for (const int step : {2, 4}) checkpoint(link, step, "b");
  EXPECT_EQ(begin_branch(link, {.from = link / "checkpoint-2.h5", .step = 2}).set_aside, disk / "real.2");
  EXPECT_THAT(names(top_), ElementsAre("disk", "link", "run"));
}

TEST_F(SetAside, GoingOnFromTheNewestMovesNothing) {
  for (const int step : {2, 4}) checkpoint(run_, step, "a");
  lines(run_, 5);
  const Branched branched = begin_branch(run_, {.from = run_ / "checkpoint-4.h5", .step = 4, .same_run = true});
  EXPECT_FALSE(branched.set_aside);
  EXPECT_THAT(names(top_), ElementsAre("run"));
}

// With other settings the lines after the checkpoint are those of another branch.
TEST_F(SetAside, OtherSettingsKeepTheMetricsOfTheStepsThatAreDoneAgain) {
  checkpoint(run_, 4, "a");
  lines(run_, 5);
  ASSERT_TRUE(begin_branch(run_, {.from = run_ / "checkpoint-4.h5", .step = 4}).set_aside);
  EXPECT_THAT(names(top_ / "run.1"), ElementsAre("metrics.jsonl"));
  EXPECT_THAT(names(run_), ElementsAre("checkpoint-4.h5", "metrics.jsonl"));
}

TEST_F(SetAside, FromAnotherFolderEverythingIsMovedAndTheCheckpointComes) {
  const fs::path other = top_ / "other";
  fs::create_directories(other);
  const fs::path from = checkpoint(other, 4, "b4");
  for (const int step : {4, 6}) checkpoint(run_, step, std::string("a").append(std::to_string(step)));
  lines(run_, 6);
  const Branched branched = begin_branch(run_, {.from = from, .step = 4});
  EXPECT_EQ(branched.from, run_ / "checkpoint-4.h5");
  EXPECT_THAT(names(run_), ElementsAre("checkpoint-4.h5"));
  EXPECT_EQ(read_file(run_ / "checkpoint-4.h5"), "b4");
  EXPECT_THAT(names(top_ / "run.1"), ElementsAre("checkpoint-4.h5", "checkpoint-6.h5", "metrics.jsonl"));
  EXPECT_EQ(read_file(top_ / "run.1" / "checkpoint-4.h5"), "a4");
  EXPECT_EQ(read_file(from), "b4");
}

TEST_F(SetAside, FromAnotherFolderIntoAnEmptyOne) {
  const fs::path other = top_ / "other";
  fs::create_directories(other);
  const Branched branched = begin_branch(run_, {.from = checkpoint(other, 4, "b4"), .step = 4});
  EXPECT_FALSE(branched.set_aside);
  EXPECT_THAT(names(run_), ElementsAre("checkpoint-4.h5"));
}

// The same file under another name, or by a link, is still this folder's.
TEST_F(SetAside, TheFolderMayBeNamedOtherwise) {
  for (const int step : {2, 4}) checkpoint(run_, step, "a");
  fs::create_directory_symlink(run_, top_ / "link");
  const Branched branched = begin_branch(run_, {.from = top_ / "link" / "checkpoint-2.h5", .step = 2});
  EXPECT_EQ(branched.from, run_ / "checkpoint-2.h5");
  EXPECT_THAT(names(run_), ElementsAre("checkpoint-2.h5"));
  EXPECT_THAT(names(top_ / "run.1"), ElementsAre("checkpoint-4.h5"));
}

TEST_F(SetAside, TakesTheFirstFreeName) {
  fs::create_directories(top_ / "run.1");
  fs::create_symlink("nowhere", top_ / "run.2");
  EXPECT_EQ(free_name_beside(run_), top_ / "run.3");
  EXPECT_EQ(free_name_beside(run_ / ""), top_ / "run.3");
}

}  // namespace
}  // namespace cleave::app
