// A failed write leaves the old file whole and no temporary behind.
#include "cleave/base/atomic_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"
#include "support/watched_sync.hpp"

namespace cleave {
namespace {

namespace fs = std::filesystem;

class AtomicFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_ = fs::temp_directory_path() / ("cleave-atomic-" + std::to_string(::getpid()));
};

TEST_F(AtomicFile, Replaces) {
  replace_file(folder_ / "a", "one");
  replace_file(folder_ / "a", "two");
  EXPECT_EQ(read_file(folder_ / "a"), "two");
}

TEST_F(AtomicFile, KeepsTheOldOneWhenWritingFails) {
  replace_file(folder_ / "a", "one");
  EXPECT_THROW(replace_file(folder_ / "a",
                            [](const fs::path& temporary) {
                              std::ofstream(temporary) << "half";
                              throw EnvironmentError("write", "a", "disk full");
                            }),
               EnvironmentError);
  EXPECT_EQ(read_file(folder_ / "a"), "one");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

using testing_support::WatchedSync;
using Synced = std::vector<std::pair<std::string, std::string>>;  // paths, and what the file held by then

// When the power fails there is the old file or the new one, whole.
TEST_F(AtomicFile, IsOnTheDiskBeforeItHasItsNameAndThenTheNameIs) {
  replace_file(folder_ / "a", "one");
  Synced synced;
  const WatchedSync watched([&](const std::string& path) {
    synced.emplace_back(path, read_file(folder_ / "a"));
    return 0;
  });
  replace_file(folder_ / "a", "two");
  EXPECT_THAT(synced, ::testing::ElementsAre(std::pair((folder_ / "a.tmp").string(), "one"),
                                             std::pair(folder_.string(), "two")));
}

TEST_F(AtomicFile, WhatTheDiskDoesNotKeepIsNotTakenForWritten) {
  replace_file(folder_ / "a", "one");
  {
    const WatchedSync watched([](const std::string& path) { return path.ends_with(".tmp") ? EIO : 0; });
    EXPECT_THROW(replace_file(folder_ / "a", "two"), EnvironmentError);
  }
  EXPECT_EQ(read_file(folder_ / "a"), "one");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp"));
  {
    const WatchedSync watched([&](const std::string& path) { return path == folder_.string() ? EIO : 0; });
    EXPECT_THROW(replace_file(folder_ / "a", "two"), EnvironmentError);
  }
  // A file system that has nothing to sync a folder with.
  const WatchedSync watched([&](const std::string& path) { return path == folder_.string() ? EINVAL : 0; });
  EXPECT_NO_THROW(replace_file(folder_ / "a", "three"));
  EXPECT_EQ(read_file(folder_ / "a"), "three");
}

TEST_F(AtomicFile, NamesOfFoldersAndSecondNamesAreOnTheDisk) {
  replace_file(folder_ / "a", "one");
  std::vector<std::string> synced;
  const WatchedSync watched([&](const std::string& path) {
    synced.push_back(path);
    return 0;
  });
  make_folders(folder_ / "b" / "c");
  EXPECT_THAT(synced, ::testing::ElementsAre(folder_.string(), (folder_ / "b").string()));
  synced.clear();
  link_or_copy(folder_ / "a", folder_ / "b" / "to");
  EXPECT_THAT(synced, ::testing::ElementsAre((folder_ / "b").string()));
}

TEST_F(AtomicFile, MissingFolderIsAnEnvironmentError) {
  EXPECT_THROW(replace_file(folder_ / "no" / "a", "x"), EnvironmentError);
  EXPECT_THROW((void)read_file(folder_ / "none"), EnvironmentError);
}

// `--json /dev/null` of root must not take /dev/null from everybody.
TEST_F(AtomicFile, DevicesAndPipesStayWhatTheyAre) {
  const fs::path pipe = folder_ / "pipe", full = folder_ / "full";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = read_file(pipe); });
  replace_file(pipe, "for whoever reads");
  reader.join();
  EXPECT_EQ(read, "for whoever reads");
  EXPECT_THROW(replace_file(pipe, [](const fs::path& /*temporary*/) {}), EnvironmentError);
  EXPECT_TRUE(fs::is_fifo(pipe));
  fs::create_symlink("/dev/full", full);
  EXPECT_THROW(replace_file(full, "no room"), EnvironmentError);
  EXPECT_TRUE(fs::is_symlink(full));
  EXPECT_TRUE(fs::is_character_file(full));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "a temporary file is left";
}

}  // namespace
}  // namespace cleave
