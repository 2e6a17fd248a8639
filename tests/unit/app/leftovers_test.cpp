// Dead jobs' folders and segments go; those of the living, of others and of late stay.
#include "commands/leftovers.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LeftoversTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(where_.sessions);
    fs::create_directories(where_.shared_memory);
  }
  void TearDown() override { fs::remove_all(top_); }

  // A process id that nobody has any more.
  static pid_t dead() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return child;
  }
  fs::path session(pid_t pid) {
    const fs::path folder =
        where_.sessions / ("ompi.host." + std::to_string(::geteuid())) / ("pid." + std::to_string(pid));
    fs::create_directories(folder / "1");
    std::ofstream(folder / "contact.txt") << "x";
    return folder;
  }
  fs::path segment(const std::string& host, const std::string& job) {
    fs::path file = where_.shared_memory / ("vader_segment." + host + "." + std::to_string(::geteuid()) + "." + job);
    std::ofstream(file) << std::string(8192, 'x');
    return file;
  }

  fs::path top_ = fs::temp_directory_path() / ("cleave-leftovers-" + std::to_string(::getpid()));
  LeftoverPlaces where_{
      .sessions = top_ / "tmp", .shared_memory = top_ / "shm", .host = "host", .youngest = std::chrono::seconds(0)};
};

TEST_F(LeftoversTest, SessionsOfTheDeadGo) {
  const fs::path gone = session(dead()), alive = session(::getpid());
  fs::create_directories(alive.parent_path() / "pid.x1");
  fs::create_directory_symlink("/", gone / "link");
  const Leftovers found = remove_leftovers(where_);
  EXPECT_EQ(found.sessions, 1);
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(alive / "contact.txt"));
  EXPECT_TRUE(fs::exists(alive.parent_path() / "pid.x1"));
  EXPECT_THAT(describe(found), HasSubstr("1 session folders"));
}

TEST_F(LeftoversTest, SegmentsThatNobodyHasMappedGo) {
  const fs::path gone = segment("host", "1.0"), used = segment("host", "2.0"), other = segment("elsewhere", "1.0");
  const int descriptor = ::open(used.c_str(), O_RDWR);
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  const Leftovers found = remove_leftovers(where_);
  EXPECT_EQ(found.segments, 1);
  EXPECT_EQ(found.memory, Bytes(8192));
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(used));
  EXPECT_TRUE(fs::exists(other));
  ::munmap(mapped, 4096);
}

TEST_F(LeftoversTest, WhatIsYoungStays) {
  const fs::path folder = session(dead()), file = segment("host", "1.0");
  where_.youngest = std::chrono::seconds(3600);
  const Leftovers found = remove_leftovers(where_);
  EXPECT_EQ(found.sessions + found.segments, 0);
  EXPECT_TRUE(fs::exists(folder));
  EXPECT_TRUE(fs::exists(file));
  EXPECT_EQ(describe(found), "");
}

TEST_F(LeftoversTest, AHostWithoutANameOrWithAPathIsNotLookedFor) {
  const fs::path folder = session(dead());
  for (const char* host : {"", "../host"}) {
    where_.host = host;
    EXPECT_EQ(remove_leftovers(where_).sessions, 0);
  }
  EXPECT_TRUE(fs::exists(folder));
}

}  // namespace
}  // namespace cleave::app
