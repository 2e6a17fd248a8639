// Which lines are seen when: rewritten in place on a terminal, seldom and plain elsewhere.
#include "cleave/telemetry/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace cleave::telemetry {
namespace {

using Mode = ProgressSettings::Mode;

class ProgressOutput : public ::testing::Test {
 protected:
  std::string shown() {
    std::fflush(out_.get());
    std::string text(static_cast<std::size_t>(std::ftell(out_.get())), '\0');
    std::rewind(out_.get());
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), out_.get()), text.size());
    std::rewind(out_.get());
    EXPECT_EQ(::ftruncate(::fileno(out_.get()), 0), 0);
    return text;
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::tmpfile(), &std::fclose};
  ManualClock clock_;
};

TEST_F(ProgressOutput, LiveLineIsRewrittenAtMostTenTimesASecond) {
  Progress progress(out_.get(), clock_, {.mode = Mode::live, .columns = 80});
  progress.update(1, "one");
  EXPECT_EQ(shown(), "\r\x1b[Kone");
  for (int step = 2; step <= 100; ++step) {  // 99 updates in 0.99 s
    clock_.advance(Seconds(0.01));
    progress.update(step, "x");
  }
  const std::string text = shown();
  EXPECT_GE(std::count(text.begin(), text.end(), 'x'), 8);
  EXPECT_LE(std::count(text.begin(), text.end(), 'x'), 10);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  progress.finish();
  EXPECT_EQ(shown(), "\r\x1b[Kx\n");  // the last was held back
  progress.finish();
  EXPECT_EQ(shown(), "");
}

TEST_F(ProgressOutput, LiveLineGivesWay) {
  Progress progress(out_.get(), clock_, {.mode = Mode::live, .columns = 80});
  progress.clear();
  EXPECT_EQ(shown(), "");
  progress.update(1, "one");
  progress.say("checkpoint written");
  EXPECT_EQ(shown(), "\r\x1b[Kone\r\x1b[Kcheckpoint written\n");
  progress.update(2, "two");  // at once, though no time has passed: nothing stands there
  EXPECT_EQ(shown(), "\r\x1b[Ktwo");
  progress.clear();
  progress.finish();
  EXPECT_EQ(shown(), "\r\x1b[K\r\x1b[Ktwo\n");
}

TEST_F(ProgressOutput, LiveLineIsCutToTheWidth) {
  Progress progress(out_.get(), clock_, {.mode = Mode::live, .columns = 5});
  progress.update(1, "abcdefgh");
  EXPECT_EQ(shown(), "\r\x1b[Kabcd");
  clock_.advance(Seconds(1));
  progress.update(2, "\u00e9\u2581\u2588\u00e9\u00e9");  // cut between characters, not within
  EXPECT_EQ(shown(), "\r\x1b[K\u00e9\u2581\u2588\u00e9");
}

TEST_F(ProgressOutput, PlainLinesAreSeldom) {
  {
    Progress progress(out_.get(), clock_, {.mode = Mode::plain, .plain_every = Seconds(10), .plain_steps = 5});
    progress.update(0, "0");
    clock_.advance(Seconds(20));
    progress.update(4, "4");  // too few steps
    progress.update(5, "5");
    progress.update(50, "50");  // too soon
    clock_.advance(Seconds(9.5));
    progress.update(51, "51");
    clock_.advance(Seconds(0.5));
    progress.update(52, "52");
    progress.say("said");
    progress.update(53, "53");
    EXPECT_EQ(shown(), "0\n5\n52\nsaid\n");
  }
  EXPECT_EQ(shown(), "53\n");  // the destructor shows the last
}

TEST_F(ProgressOutput, QuietSaysOnlyWhatItMust) {
  Progress progress(out_.get(), clock_, {.mode = Mode::quiet});
  progress.update(1, "one");
  progress.say("said");
  progress.finish();
  EXPECT_EQ(shown(), "said\n");
}

TEST_F(ProgressOutput, AFileIsPlainATerminalIsLive) {
  ::setenv("TERM", "xterm", 1);
  EXPECT_FALSE(Progress(out_.get(), clock_).live());
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) GTEST_SKIP() << "no pseudo-terminal here";
  std::FILE* line = std::fopen(::ptsname(terminal), "w");
  ASSERT_NE(line, nullptr);
  EXPECT_TRUE(Progress(line, clock_).live());
  for (const char* without_panel : {"dumb", ""}) {
    ::setenv("TERM", without_panel, 1);
    EXPECT_FALSE(Progress(line, clock_).live()) << without_panel;
  }
  std::fclose(line);
  ::close(terminal);
}

TEST_F(ProgressOutput, AFullDiskIsNoError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  {
    Progress progress(full, clock_, {.mode = Mode::plain});
    EXPECT_NO_THROW(progress.update(1, "one"));
  }
  std::fclose(full);
}

TEST_F(ProgressOutput, APanelIsRewrittenAsAWhole) {
  Progress progress(out_.get(), clock_, {.mode = Mode::live, .columns = 6});
  progress.update(1, "line", {"first line", "second"});
  EXPECT_EQ(shown(), "\r\x1b[Kfirst\nsecon");
  clock_.advance(Seconds(1));
  progress.update(2, "line", {"a", "b", "c"});
  EXPECT_EQ(shown(), "\r\x1b[K\x1b[A\r\x1b[Ka\nb\nc");
  progress.say("said");
  EXPECT_EQ(shown(), "\r\x1b[K\x1b[A\r\x1b[K\x1b[A\r\x1b[Ksaid\n");
  progress.finish();
  EXPECT_EQ(shown(), "\r\x1b[Ka\nb\nc\n");
}

TEST_F(ProgressOutput, APipeGetsTheLineAndNotThePanel) {
  Progress progress(out_.get(), clock_, {.mode = Mode::plain});
  progress.update(1, "line", {"first", "second"});
  EXPECT_EQ(shown(), "line\n");
}

TEST_F(ProgressOutput, WhatIsDroppedIsNotShownAgain) {
  Progress progress(out_.get(), clock_, {.mode = Mode::live, .columns = 80});
  progress.update(1, "one");
  EXPECT_EQ(shown(), "\r\x1b[Kone");
  progress.drop();
  progress.finish();
  EXPECT_EQ(shown(), "\r\x1b[K");
}

TEST_F(ProgressOutput, ShortWorkSaysNothing) {
  Progress progress(out_.get(), clock_, {.mode = Mode::plain, .first_after = Seconds(2)});
  progress.update(1, "one");
  EXPECT_EQ(shown(), "");
  clock_.advance(Seconds(3));
  progress.update(2, "two");
  EXPECT_EQ(shown(), "two\n");
}

TEST(Sparkline, HighestIsTallestAndValuesShareCharacters) {
  const std::vector<double> falling{8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(sparkline(falling, 8, true), "@#*+=-:.");
  EXPECT_EQ(sparkline(falling, 2, true), "@.");
  EXPECT_EQ(sparkline(falling, 8), "█▇▆▅▄▃▂▁");
  EXPECT_EQ(sparkline(std::vector<double>{1, std::nan(""), 1}, 8, true), "..");
  EXPECT_EQ(sparkline({}, 8), "");
  EXPECT_EQ(sparkline(falling, 0), "");
}

}  // namespace
}  // namespace cleave::telemetry
