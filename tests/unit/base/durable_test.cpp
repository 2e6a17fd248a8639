// Folders and second names, where there are links and where there are none; links under temporary names.
#include "cleave/base/durable.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave {
namespace {

namespace fs = std::filesystem;

class Durable : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_ = fs::temp_directory_path() / ("cleave-durable-" + std::to_string(::getpid()));
};

TEST_F(Durable, MakesWhatIsMissing) {
  make_folders(folder_ / "a" / "b" / "c");
  make_folders(folder_ / "a" / "b" / "c");
  make_folders(folder_ / "d" / "");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b" / "c"));
  EXPECT_TRUE(fs::is_directory(folder_ / "d"));
  replace_file(folder_ / "file", "x");
  EXPECT_THROW(make_folders(folder_ / "file" / "below"), EnvironmentError);
}

TEST_F(Durable, LinksAndReplaces) {
  replace_file(folder_ / "from", "one");
  replace_file(folder_ / "to", "old");
  link_or_copy(folder_ / "from", folder_ / "to");
  link_or_copy(folder_ / "from", folder_ / "to");
  EXPECT_EQ(read_file(folder_ / "to"), "one");
  EXPECT_FALSE(fs::exists(folder_ / "to.tmp"));
  replace_file(folder_ / "from", "two");
  EXPECT_EQ(read_file(folder_ / "to"), "one");
  EXPECT_THROW(link_or_copy(folder_ / "none", folder_ / "other"), EnvironmentError);
  EXPECT_FALSE(fs::exists(folder_ / "other.tmp"));
}

TEST_F(Durable, ALinkIsNotLinkedButItsFile) {
  replace_file(folder_ / "file", "one");
  fs::create_symlink("file", folder_ / "latest");
  fs::create_directory(folder_ / "other");
  link_or_copy(folder_ / "latest", folder_ / "other" / "to");
  EXPECT_FALSE(fs::is_symlink(folder_ / "other" / "to"));
  EXPECT_EQ(read_file(folder_ / "other" / "to"), "one");
  fs::create_symlink("none", folder_ / "dangling");
  EXPECT_THROW(link_or_copy(folder_ / "dangling", folder_ / "other" / "to"), EnvironmentError);
  EXPECT_EQ(read_file(folder_ / "other" / "to"), "one");
}

TEST_F(Durable, CopiesWhereThereAreNoLinks) {
  const fs::path elsewhere = fs::path("/dev/shm") / folder_.filename();
  std::error_code error;
  if (!fs::create_directory(elsewhere, error)) GTEST_SKIP() << "no /dev/shm here";
  replace_file(folder_ / "from", "one");
  link_or_copy(folder_ / "from", elsewhere / "to");
  EXPECT_EQ(read_file(elsewhere / "to"), "one");
  fs::remove_all(elsewhere);
}

// A link that lies under the temporary name is not a way to another file.
TEST_F(Durable, ALinkUnderTheTemporaryNameIsNotFollowed) {
  replace_file(folder_ / "precious", "kept");
  fs::create_symlink(folder_ / "precious", folder_ / "a.tmp");
  replace_file(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "precious"), "kept");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_FALSE(fs::is_symlink(folder_ / "a"));
  fs::create_hard_link(folder_ / "precious", folder_ / "a.tmp");
  replace_file(folder_ / "a", "newer");
  EXPECT_EQ(read_file(folder_ / "precious"), "kept");
}

}  // namespace
}  // namespace cleave
