// What goes to the file and what to the console, line by line, and what happens when neither can be written.
#include "cleave/telemetry/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::telemetry {
namespace {

namespace fs = std::filesystem;
using ::testing::MatchesRegex;

std::string contents(std::FILE* file) {
  std::fflush(file);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  return text;
}

class LogFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_ = fs::temp_directory_path() / fmt::format("cleave-log-{}", ::getpid());
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> console_{std::tmpfile(), &std::fclose};
};

TEST_F(LogFile, LevelsPerSink) {
  int before = 0;
  const Log log({.file = folder_ / "log.txt",
                 .file_level = LogLevel::info,
                 .console = console_.get(),
                 .console_level = LogLevel::error,
                 .tag = "rank 3 (100%v)",
                 .before_console = [&] { ++before; }});
  EXPECT_FALSE(log.wants(LogLevel::debug));
  EXPECT_TRUE(log.wants(LogLevel::info));
  EXPECT_FALSE(log.wants(LogLevel::off));
  log.debug("hidden");
  log.info("step {} of {}", 1, 2);
  log.warning("slow");
  EXPECT_EQ(before, 0);
  log.error("device said {}", "a\nb\x1b[2J %v");
  EXPECT_EQ(before, 1);
  EXPECT_EQ(contents(console_.get()), "cleave: error: rank 3 (100%v): device said a\\nb\\x1b[2J %v\n");
  // Each line is in the file though the log is still open.
  const std::string stamp = "[0-9-]+ [0-9:.]+ ";
  EXPECT_THAT(
      read_file(folder_ / "log.txt"),
      MatchesRegex(stamp + "info: rank 3 \\(100%v\\): step 1 of 2\n" + stamp + "warning: rank 3 \\(100%v\\): slow\n" +
                   stamp + "error: rank 3 \\(100%v\\): device said a\\\\nb\\\\x1b\\[2J %v\n"));
  EXPECT_EQ(log.failures(), 0);
}

TEST_F(LogFile, AppendsToWhatIsThere) {
  Log({.file = folder_ / "log.txt"}).info("one");
  Log({.file = folder_ / "log.txt"}).info("two");
  EXPECT_THAT(read_file(folder_ / "log.txt"), MatchesRegex("[^\n]*: one\n[^\n]*: two\n"));
}

// A link under the log's name loses the name; a pipe would wait for a reader.
TEST_F(LogFile, IsWrittenToNobodyElsesFile) {
  std::filesystem::create_directories(folder_);
  replace_file(folder_ / "precious", "mine");
  std::filesystem::create_symlink("precious", folder_ / "log.txt");
  Log({.file = folder_ / "log.txt"}).info("one");
  EXPECT_EQ(read_file(folder_ / "precious"), "mine");
  EXPECT_THAT(read_file(folder_ / "log.txt"), MatchesRegex("[^\n]*: one\n"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(Log({.file = folder_ / "pipe"}), EnvironmentError);
}

TEST_F(LogFile, TroubleIsCountedNotThrown) {
  EXPECT_THROW(Log({.file = folder_}), EnvironmentError);
  const Log log({.file = "/dev/full"});
  EXPECT_NO_THROW(log.error("lost"));
  EXPECT_EQ(log.failures(), 1);
}

TEST(Log, KeepsNothingByDefault) {
  const Log log;
  EXPECT_FALSE(log.wants(LogLevel::error));
  log.error("nowhere");
}

}  // namespace
}  // namespace cleave::telemetry
