// Finding, choosing and pruning the checkpoints of a folder.
#include "cleave/checkpoint/folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mapped_file.hpp"
#include "support/watched_sync.hpp"
#include "temp_folder.hpp"

namespace cleave::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CheckpointFolder : public TempFolder {
 protected:
  void write(std::int64_t step) { write_snapshot(checkpoint_path(folder_, step), view_of(sample_snapshot(step))); }
  void damage(std::int64_t step) {
    const fs::path path = checkpoint_path(folder_, step);
    store(path, load(path).substr(0, 1000));
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> out;
    for (const CheckpointFile& file : find_checkpoints(folder_)) out.push_back(file.step);
    return out;
  }
};

TEST_F(CheckpointFolder, FindsByNameAndNumber) {
  for (const char* name : {"checkpoint-9.h5", "checkpoint-10.h5", "checkpoint-0.h5", "checkpoint-.h5",
                           "checkpoint-1x.h5", "checkpoint--1.h5", "checkpoint-007.h5", "checkpoint-5.h5.tmp",
                           "checkpoint-99999999999999999999.h5", "my-checkpoint-3.h5", "checkpoint-4.hdf5"}) {
    store(folder_ / name, "");
  }
  fs::create_directory(folder_ / "checkpoint-77.h5");
  EXPECT_THAT(steps(), ElementsAre(10, 9, 0));
  EXPECT_THAT(find_checkpoints(folder_ / "none"), IsEmpty());
  EXPECT_THROW((void)find_checkpoints(folder_ / "checkpoint-9.h5"), EnvironmentError);
}

TEST_F(CheckpointFolder, NewestWholeSkipsDamagedOnes) {
  for (const std::int64_t step : {100, 20, 300, 200}) write(step);
  EXPECT_EQ(newest_whole_checkpoint(folder_).found->step, 300);
  damage(300);
  store(checkpoint_path(folder_, 200), "");
  const NewestCheckpoint newest = newest_whole_checkpoint(folder_);
  EXPECT_EQ(newest.found, (CheckpointFile{folder_ / "checkpoint-100.h5", 100}));
  ASSERT_THAT(newest.skipped, SizeIs(2));
  EXPECT_EQ(newest.skipped[0].path, folder_ / "checkpoint-300.h5");
  EXPECT_THAT(newest.skipped[0].reason, HasSubstr("checkpoint-300.h5"));
}

// It may be as good as any: who took it for damaged would go on from an older one, and move it away.
TEST_F(CheckpointFolder, WhatMayNotBeReadIsNotDamaged) {
  write(1);
  write(2);
  const rlimit all = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  const int next = ::dup(0);
  ::close(next);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(next) + 1, .rlim_max = all.rlim_max};  // for the list of the folder
  const fs::path file = checkpoint_path(folder_, 2);
  ::setrlimit(RLIMIT_NOFILE, &few);
  const int taken = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_THROW((void)MappedFile(file), UnreadableFile);
  ::close(taken);
  ::setrlimit(RLIMIT_NOFILE, &all);
  if (::geteuid() == 0) return;  // who may read everything
  fs::permissions(file, fs::perms::none);
  EXPECT_THROW((void)newest_whole_checkpoint(folder_), EnvironmentError);
}

TEST_F(CheckpointFolder, NoneWhole) {
  EXPECT_EQ(newest_whole_checkpoint(folder_).found, std::nullopt);
  EXPECT_EQ(newest_whole_checkpoint(folder_ / "none").found, std::nullopt);
  store(checkpoint_path(folder_, 1), "x");
  EXPECT_EQ(newest_whole_checkpoint(folder_).found, std::nullopt);
  EXPECT_THAT(newest_whole_checkpoint(folder_).skipped, SizeIs(1));
}

TEST_F(CheckpointFolder, PruneKeepsTheNewest) {
  for (const std::int64_t step : {1, 2, 3, 4}) write(step);
  store(folder_ / "checkpoint-5.h5.tmp", "half");
  store(folder_ / "notes.txt.tmp", "not ours");
  Pruner pruner(folder_);
  EXPECT_THAT(pruner.prune(2),
              ElementsAre(folder_ / "checkpoint-5.h5.tmp", folder_ / "checkpoint-2.h5", folder_ / "checkpoint-1.h5"));
  EXPECT_THAT(steps(), ElementsAre(4, 3));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt.tmp"));
  EXPECT_THAT(pruner.prune(2), IsEmpty());
  EXPECT_THROW((void)pruner.prune(0), Bug);
}

TEST_F(CheckpointFolder, StepsThatAreTakenBackLeaveNothingToGoOnFrom) {
  for (const std::int64_t step : {1, 2, 3}) write(step);
  Pruner pruner(folder_);
  write(4);  // that the process has not written counts too
  EXPECT_THAT(pruner.set_aside_after(2),
              ElementsAre(folder_ / "checkpoint-4.h5.taken_back", folder_ / "checkpoint-3.h5.taken_back"));
  EXPECT_THAT(steps(), ElementsAre(2, 1));
  EXPECT_EQ(newest_whole_checkpoint(folder_).found->step, 2);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoint-4.h5.taken_back"));
  EXPECT_THAT(pruner.set_aside_after(2), IsEmpty());
  write(3);  // run again
  pruner.wrote(checkpoint_path(folder_, 3), 3);
  EXPECT_THAT(pruner.prune(2), ElementsAre(folder_ / "checkpoint-1.h5"));
  EXPECT_THAT(steps(), ElementsAre(3, 2));
}

// Those that are set aside are none of the ones that are kept.
TEST_F(CheckpointFolder, WhatIsTakenBackTakesNobodysPlace) {
  for (const std::int64_t step : {1, 2, 3}) write(step);
  Pruner pruner(folder_);
  (void)pruner.set_aside_after(2);
  write(4);
  pruner.wrote(checkpoint_path(folder_, 4), 4);
  EXPECT_THAT(pruner.prune(2), ElementsAre(folder_ / "checkpoint-1.h5"));
  EXPECT_THAT(steps(), ElementsAre(4, 2));
}

// Steps that a liar had a part in do not come back when the power fails.
TEST_F(CheckpointFolder, WhatIsTakenBackIsSoOnTheDisk) {
  for (const std::int64_t step : {1, 2}) write(step);
  std::vector<std::string> synced;
  const testing_support::WatchedSync watched([&](const std::string& path) {
    EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 2)));
    synced.push_back(path);
    return 0;
  });
  (void)set_aside_after(folder_, 1);
  EXPECT_THAT(synced, ElementsAre(folder_.string()));
  (void)set_aside_after(folder_, 1);
  EXPECT_THAT(synced, SizeIs(1));
}

TEST_F(CheckpointFolder, NoneAfterAVerdict) {
  for (const std::int64_t step : {1, 3, 5}) write(step);
  EXPECT_EQ(newest_whole_checkpoint(folder_, 4).found->step, 3);
  EXPECT_EQ(newest_whole_checkpoint(folder_, 3).found->step, 3);
  EXPECT_EQ(newest_whole_checkpoint(folder_, 0).found, std::nullopt);
  EXPECT_THAT(newest_whole_checkpoint(folder_, 4).skipped, IsEmpty());
}

// At any time there is a checkpoint to go back to before the last seven steps, once there were seven, and never more
// than two beside those that are kept anyway.
TEST_F(CheckpointFolder, PruneKeepsWhatMayBeGoneBackTo) {
  constexpr std::int64_t kBack = 7;
  Pruner pruner(folder_);
  for (std::int64_t step = 1; step <= 40; ++step) {
    write(step);
    pruner.wrote(checkpoint_path(folder_, step), step);
    (void)pruner.prune(2, step - kBack);
    EXPECT_THAT(steps().size(), ::testing::Le(4)) << step;
    EXPECT_EQ(steps().front(), step);
    if (step > kBack) {
      const std::int64_t before = newest_whole_checkpoint(folder_, step - kBack).found->step;
      EXPECT_THAT(before, ::testing::Ge(step - 2 * kBack)) << step;
    }
  }
}

TEST_F(CheckpointFolder, PruneNeverDeletesTheNewestWholeOne) {
  for (const std::int64_t step : {1, 2, 3, 4}) write(step);
  damage(4);
  damage(3);
  (void)Pruner(folder_).prune(1);
  EXPECT_THAT(steps(), ElementsAre(4, 2));
  EXPECT_EQ(newest_whole_checkpoint(folder_).found->step, 2);
}

// What is kept follows the order of writing: a file with a higher number that lies there is not newer.
TEST_F(CheckpointFolder, PruneKeepsWhatWasWrittenLast) {
  for (const std::int64_t step : {18, 20}) write(step);
  Pruner pruner(folder_);
  for (const std::int64_t step : {6, 8, 10}) {
    write(step);
    pruner.wrote(checkpoint_path(folder_, step), step);
    (void)pruner.prune(2);
    EXPECT_TRUE(fs::exists(checkpoint_path(folder_, step))) << step;
  }
  EXPECT_THAT(steps(), ElementsAre(10, 8));
}

TEST_F(CheckpointFolder, PruneKeepsWhatWasResumedFromAndWhatOthersPutThere) {
  for (const std::int64_t step : {2, 4}) write(step);
  Pruner pruner(folder_, checkpoint_path(folder_, 4));
  write(1);
  write(99);
  for (const std::int64_t step : {6, 8, 10}) {
    write(step);
    pruner.wrote(checkpoint_path(folder_, step), step);
    (void)pruner.prune(1);
  }
  EXPECT_THAT(steps(), ElementsAre(99, 10, 4, 1));
}

TEST_F(CheckpointFolder, ACheckpointWrittenAgainCountsOnce) {
  for (const std::int64_t step : {1, 2}) write(step);
  Pruner pruner(folder_);
  for (int times = 0; times < 3; ++times) pruner.wrote(checkpoint_path(folder_, 2), 2);
  EXPECT_THAT(pruner.prune(2), IsEmpty());
  EXPECT_THAT(steps(), ElementsAre(2, 1));
}

}  // namespace
}  // namespace cleave::checkpoint
