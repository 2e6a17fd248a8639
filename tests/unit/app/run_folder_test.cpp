// What a run writes while it goes on is JSON whatever its hosts are called: names of hosts are bytes.
#include "output/run_folder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "cleave/base/error.hpp"
#include "output/folder_lock.hpp"
#include "output/verdict.hpp"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(top_); }
  [[nodiscard]] nlohmann::json read(const std::string& name) const {
    std::ifstream in(top_ / "run" / name);
    return nlohmann::json::parse(in);
  }
  fs::path top_ = fs::temp_directory_path() / ("cleave-run-folder-" + std::to_string(::getpid()));
};

TEST_F(RunFolderTest, HostsMayBeCalledAnything) {
  RunFolder folder = RunFolder::create(top_ / "run");
  folder.store_ranks({{.rank = 0, .pid = 1, .host = {}, .devices = {}},
                      {.rank = 1, .pid = 2, .host = "n\xff\xfe", .devices = {DeviceId(0)}}});
  server::StepResult result;
  result.dilation = 1.25;
  result.dilation_by_host = {{"n\xff\xfe", 1.2}, {"plain", 1.05}};
  folder.append(1, 64, result, std::nullopt);

  const nlohmann::json ranks = read("ranks.json");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].at("rank"), 1);
  EXPECT_TRUE(ranks[1].at("host").get<std::string>().starts_with("n"));
  const nlohmann::json hosts = read("metrics.jsonl").at("dilation_by_host");
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts.at("plain"), 1.05);
}

// Its files would be taken for the run's own, in the report first of all.
TEST_F(RunFolderTest, ASimulationIsMovedAside) {
  fs::create_directories(top_ / "run");
  std::ofstream(top_ / "run" / "simulate.json") << "[]";
  std::ofstream(top_ / "run" / "layout.json") << "{}";
  const RunFolder folder = RunFolder::create(top_ / "run");
  EXPECT_EQ(folder.moved(), top_ / "run.1");
  EXPECT_TRUE(fs::exists(top_ / "run.1" / "simulate.json"));
  EXPECT_TRUE(fs::exists(top_ / "run.1" / "layout.json"));
  EXPECT_FALSE(fs::exists(top_ / "run" / "simulate.json"));
  EXPECT_FALSE(fs::exists(top_ / "run" / "layout.json"));
}

// As after `kill -9`: whoever starts the run anew may be quicker than the end of the killed one.
TEST_F(RunFolderTest, WaitsForAnEarlierRunThatIsAboutToEnd) {
  fs::create_directories(top_);
  std::optional<FolderLock> earlier = FolderLock::take(top_);
  std::jthread end_of_it([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    earlier.reset();
  });
  EXPECT_NO_THROW(std::ignore = FolderLock::take(top_));
}

// A run that begins moves an earlier one aside: who waited for the lock of that one has no lock of the new one's.
TEST_F(RunFolderTest, ALockOfAFolderThatWasMovedAwayIsNone) {
  fs::create_directories(top_ / "run");
  std::optional<FolderLock> earlier = FolderLock::take(top_ / "run");
  std::optional<FolderLock> begun;
  std::jthread beginning([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the other waits
    fs::rename(top_ / "run", top_ / "run.1");
    fs::create_directories(top_ / "run");
    begun = FolderLock::take(top_ / "run");
    earlier.reset();
  });
  EXPECT_THROW(std::ignore = FolderLock::take(top_ / "run"), EnvironmentError);
  beginning.join();
  begun.reset();
  EXPECT_NO_THROW(std::ignore = FolderLock::take(top_ / "run"));
}

TEST_F(RunFolderTest, AFolderThatAnotherRunHasMadeAnewIsNotItsOwn) {
  const RunFolder run = RunFolder::create(top_ / "run");
  EXPECT_NO_THROW(run.require_own());
  EXPECT_TRUE(run.is_there());
  fs::rename(top_ / "run", top_ / "elsewhere");
  EXPECT_NO_THROW(run.require_own()) << "what can be saved is saved";
  EXPECT_FALSE(run.is_there());
  const RunFolder other = RunFolder::create(top_ / "run");
  EXPECT_THROW(run.require_own(), EnvironmentError);
  EXPECT_NO_THROW(other.require_own());
  EXPECT_TRUE(other.is_there());
}

// No file may grow while one of these lives.
class FullDisk {
 public:
  FullDisk() : heeded_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit nothing{0, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &nothing);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, heeded_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*heeded_)(int);
};

// The last step's line has no later one to come with.
TEST_F(RunFolderTest, LinesThatCouldNotBeWrittenAreThereOnceSynced) {
  RunFolder folder = RunFolder::create(top_ / "run");
  const server::StepResult result;
  folder.append(1, 64, result, std::nullopt);
  {
    const FullDisk full;
    EXPECT_THROW(folder.append(2, 64, result, std::nullopt), EnvironmentError);
    EXPECT_THROW(folder.append(3, 64, result, std::nullopt), EnvironmentError);
    EXPECT_THROW(folder.sync_metrics(), EnvironmentError);
  }
  folder.sync_metrics();
  std::ifstream in(top_ / "run" / "metrics.jsonl");
  std::int64_t steps = 0;
  for (std::string text; std::getline(in, text);) EXPECT_EQ(nlohmann::json::parse(text).at("step"), ++steps);
  EXPECT_EQ(steps, 3);
}

// metrics.jsonl has one line of each step, and all time is in one of the two files.
TEST_F(RunFolderTest, LinesOfStepsThatAreTakenBackAreMoved) {
  RunFolder folder = RunFolder::create(top_ / "run");
  server::StepResult result;
  for (std::int64_t step = 1; step <= 4; ++step) {
    result.time = Seconds(static_cast<double>(step));
    folder.append(step, 64, result, std::nullopt);
  }
  const auto lines_of = [&](const char* name) {
    std::vector<nlohmann::json> lines;
    std::ifstream in(top_ / "run" / name);
    for (std::string text; std::getline(in, text);) lines.push_back(nlohmann::json::parse(text));
    return lines;
  };
  folder.take_back(2, {DeviceId(5), DeviceId(7)});
  EXPECT_EQ(lines_of("metrics.jsonl").size(), 2U);
  const auto taken = lines_of("taken_back.jsonl");
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].at("after_step"), 2);
  EXPECT_EQ(taken[0].at("devices"), nlohmann::json({5, 7}));
  ASSERT_EQ(taken[0].at("lines").size(), 2U);
  EXPECT_EQ(taken[0].at("lines")[0].at("step"), 3);

  folder.append(3, 64, result, std::nullopt);
  folder.take_back(1, {DeviceId(1)});  // what was taken back before counts on
  folder.append(2, 64, result, std::nullopt);
  folder.append(3, 64, result, std::nullopt);
  const auto metrics = lines_of("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 3U);
  EXPECT_EQ(metrics[1].at("step"), 2);
  EXPECT_EQ(metrics[1].at("taken_back"), 2);
  EXPECT_EQ(metrics[1].at("taken_back_s"), 2.0 + 4.0 + 3.0 + 4.0);
  EXPECT_FALSE(metrics[2].contains("taken_back"));
  EXPECT_EQ(lines_of("taken_back.jsonl").size(), 2U);
}

// A process was killed after it had found somebody out: the next one does what follows from it, once.
TEST_F(RunFolderTest, AVerdictThatWasLeftIsCarriedOut) {
  const fs::path run = top_ / "run";
  {
    RunFolder folder = RunFolder::create(run);
    server::StepResult result;
    for (std::int64_t step = 1; step <= 5; ++step) {
      folder.append(step, 64, result, std::nullopt);
      std::ofstream(run / ("checkpoint-" + std::to_string(step) + ".h5")) << step;
    }
    store_verdict(run, {.after_step = 3, .devices = {DeviceId(6)}});
  }
  const auto lines_of = [&](const char* name) {
    std::ifstream in(run / name);
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  };
  // Killed again at the worst moment: after the record, before anything else of the folder is as it should be.
  for (int times = 0; times < 2; ++times) {
    store_verdict(run, {.after_step = 3, .devices = {DeviceId(6)}});
    const RunFolder folder = RunFolder::resume(run, {.from = run / "checkpoint-3.h5", .step = 3, .same_run = true});
    ASSERT_TRUE(folder.carried_out());
    EXPECT_EQ(folder.carried_out()->verdict.devices, std::vector{DeviceId(6)});
    EXPECT_EQ(folder.carried_out()->aside.size(), times == 0 ? 2U : 0U);
    EXPECT_FALSE(folder.moved());
    EXPECT_FALSE(find_verdict(run));
    EXPECT_TRUE(fs::exists(run / "checkpoint-3.h5"));
    EXPECT_TRUE(fs::exists(run / "checkpoint-5.h5.taken_back"));
    EXPECT_FALSE(fs::exists(run / "checkpoint-4.h5"));
    EXPECT_EQ(lines_of("metrics.jsonl"), 3);
    EXPECT_EQ(lines_of("taken_back.jsonl"), 1);
  }
  const RunFolder later = RunFolder::resume(run, {.from = run / "checkpoint-3.h5", .step = 3, .same_run = true});
  EXPECT_FALSE(later.carried_out());
}

// Another run that wrote there until now had no room for it.
TEST_F(RunFolderTest, WhereTheCheckpointIsGoneNothingIsMoved) {
  const fs::path run = top_ / "run";
  {
    RunFolder folder = RunFolder::create(run);
    folder.append(1, 64, {}, std::nullopt);
    std::ofstream(run / "checkpoint-2.h5") << 2;
  }
  EXPECT_THROW(std::ignore = RunFolder::resume(run, {.from = run / "checkpoint-1.h5", .step = 1, .same_run = true}),
               EnvironmentError);
  EXPECT_TRUE(fs::exists(run / "checkpoint-2.h5"));
  EXPECT_TRUE(fs::exists(run / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(top_ / "run.1"));
}

TEST_F(RunFolderTest, AVerdictSaysWhatItSaysOrIsRefused) {
  fs::create_directories(top_);
  EXPECT_FALSE(find_verdict(top_));
  store_verdict(top_, {.after_step = 12, .devices = {DeviceId(3), DeviceId(40)}});
  const auto verdict = find_verdict(top_);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->after_step, 12);
  EXPECT_EQ(verdict->devices, (std::vector{DeviceId(3), DeviceId(40)}));
  for (const char* text :
       {"", "{}", R"({"after_step": "3", "devices": []})", R"({"after_step": 3, "devices": [1.5]})"}) {
    std::ofstream(top_ / "verdict.json") << text;
    EXPECT_THROW((void)find_verdict(top_), InputError) << text;
  }
  remove_verdict(top_);
  EXPECT_FALSE(find_verdict(top_));
  remove_verdict(top_);
}

}  // namespace
}  // namespace cleave::app
