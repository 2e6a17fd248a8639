// A failed write leaves the old file whole and no temporary behind.
#include "cleave/base/atomic_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "cleave/base/error.hpp"

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
