// The n-th call fails, for every n: open, write, fsync, rename, remove, truncate, and memory (once, three times
// in a row, and from then on), over a short run that goes on from a checkpoint and writes more. Of mmap and eventfd,
// which only runs of several ranks call: several_ranks.sh.
//
// Each time the run ends with its own bits and exit code 0, or with another code and a reason; it never hangs, leaves
// no checkpoint that is damaged, lies about none, and what it leaves can be gone on from. In brief some n of each kind
// are tried; CLEAVE_FAULT_FULL=1 tries all, of allocations one from each
// place in the program; CLEAVE_FAULT_FULL=every tries each of those too, CLEAVE_FAULT_CALL=N that call alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "run.hpp"

namespace cleave::faults {
namespace {

constexpr int kLast = 6;
constexpr int kMostFailures = 60;  // then it is enough
// Callers by which two allocations differ.
constexpr int kNearestCallers = 8, kAllCallers = 40;
constexpr std::int64_t kForGood = std::int64_t{1} << 40;

bool every_call() { return thorough() && std::string(std::getenv("CLEAVE_FAULT_FULL")) == "every"; }

struct Kind {
  Call call;
  int error;
  std::int64_t repeat;  // a disk that is full stays full for a while
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kCallNames[static_cast<int>(kind.call)] << "_" << kind.error << "_" << kind.repeat;
}

class NthCall : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    ASSERT_EQ(shop_.train({"train.steps=" + std::to_string(kLast), "output.dir=" + calm_.string()}).code, 0);
    wanted_ = bits_of(checkpoint::checkpoint_path(calm_, kLast));
    ASSERT_EQ(shop_.train({"train.steps=2", "output.dir=" + start_.string()}).code, 0);
  }

  // From the checkpoint of step 2, in a folder that is as it was then.
  Ended run(const Plan& plan) {
    fs::remove_all(run_);
    fs::copy(start_, run_, fs::copy_options::recursive);
    return shop_.train(arguments_, plan);
  }
  std::vector<std::int64_t> calls_to_try(const Kind& kind, std::int64_t calls);
  void expect_good_ending(const Ended& ended);

  Workshop shop_;
  fs::path calm_ = shop_.top() / "calm", start_ = shop_.top() / "start", run_ = shop_.top() / "run";
  std::vector<std::string> arguments_{"train.steps=" + std::to_string(kLast), "output.dir=" + run_.string(), "--resume",
                                      "auto"};
  std::uint64_t wanted_ = 0;
};

// Which of so many calls are to fail. A run asks for memory tens of thousands of times, in far fewer places: of each
// place, that is a chain of callers, one call is taken.
std::vector<std::int64_t> NthCall::calls_to_try(const Kind& kind, std::int64_t calls) {
  std::vector<std::int64_t> chosen;
  if (const char* only = std::getenv("CLEAVE_FAULT_CALL")) return {std::strtoll(only, nullptr, 10)};
  const bool by_place = kind.call == Call::allocate && !every_call();
  if (by_place) {
    EXPECT_EQ(run({.place_depth = thorough() ? kAllCallers : kNearestCallers, .root = {}}).code, 0);
    const std::vector<std::uint64_t> places = shop_.ledger().places();
    std::set<std::uint64_t> seen;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (seen.insert(places[i]).second) chosen.push_back(static_cast<std::int64_t>(i) + 1);
    }
  } else {
    for (std::int64_t n = 1; n <= calls; ++n) chosen.push_back(n);
  }
  if (thorough()) return chosen;
  const std::size_t some = kind.call == Call::allocate ? 100 : 25;
  const std::size_t apart = std::max<std::size_t>(1, chosen.size() / some);
  std::vector<std::int64_t> fewer;
  for (std::size_t i = 0; i < chosen.size(); i += apart) fewer.push_back(chosen[i]);
  return fewer;
}

void NthCall::expect_good_ending(const Ended& ended) {
  ASSERT_FALSE(ended.hung()) << "it hangs";
  EXPECT_LT(ended.code, 128) << "signal " << ended.code - 128 << ": " << ended.said;
  EXPECT_NE(ended.code, 4) << ended.said;
  std::vector<std::string> reported;
  for (const Step& step : shop_.ledger().steps()) {
    for (const Said& said : reports(step)) {
      if (said.what == Said::What::saved) reported.push_back(said.file);
      if (said.what == Said::What::deleted) std::erase(reported, said.file);
    }
  }
  for (const std::string& file : reported) EXPECT_NO_THROW((void)bits_of(file)) << "reported saved: " << file;
  for (const auto& file : checkpoint::find_checkpoints(run_)) EXPECT_NO_THROW((void)bits_of(file.path)) << file.path;
  if (ended.code == 0) {
    EXPECT_EQ(bits_of(checkpoint::checkpoint_path(run_, kLast)), wanted_) << ended.said;
  } else {
    EXPECT_NE(ended.said, "") << "exit code " << ended.code << " without a word";
  }
  const Ended again = shop_.train(arguments_);
  ASSERT_EQ(again.code, 0) << "after " << ended.said << "\nit does not go on: " << again.said;
  EXPECT_EQ(bits_of(checkpoint::checkpoint_path(run_, kLast)), wanted_) << again.said;
  std::vector<std::int64_t> all;
  for (int step = 1; step <= kLast; ++step) all.push_back(step);
  EXPECT_EQ(metric_steps(run_), all) << "metrics.jsonl";
}

TEST_P(NthCall, IsSurvivedOrSaid) {
  const Kind& kind = GetParam();
  ASSERT_EQ(run({}).code, 0);
  const std::int64_t calls = shop_.ledger().calls(kind.call);
  ASSERT_GT(calls, 0) << "nothing to make fail";
  int tried = 0, survived = 0;
  const ::testing::TestResult& so_far = *::testing::UnitTest::GetInstance()->current_test_info()->result();
  for (const std::int64_t n : calls_to_try(kind, calls)) {
    SCOPED_TRACE(testing::Message() << kind << ", call " << n << " of " << calls);
    const Ended ended =
        run({.call = kind.call, .nth = n, .repeat = kind.repeat, .error = kind.error, .root = run_.string()});
    if (!shop_.ledger().injected()) continue;  // calls differ a little from run to run
    ++tried;
    survived += ended.code == 0 ? 1 : 0;
    expect_good_ending(ended);
    if (so_far.total_part_count() > kMostFailures) break;
  }
  std::printf("%s: %d of %lld calls made to fail, %d survived\n", kCallNames[static_cast<int>(kind.call)], tried,
              static_cast<long long>(calls), survived);
  EXPECT_GT(tried, 0) << "no fault was injected";
}

INSTANTIATE_TEST_SUITE_P(Kinds, NthCall,
                         ::testing::Values(Kind{Call::open, EMFILE, 1}, Kind{Call::open, EMFILE, 5},
                                           Kind{Call::write, ENOSPC, 1}, Kind{Call::write, ENOSPC, 12},
                                           Kind{Call::write, EIO, 1}, Kind{Call::sync, EIO, 1},
                                           Kind{Call::sync, EIO, 3}, Kind{Call::rename, EIO, 1},
                                           Kind{Call::remove, EACCES, 1}, Kind{Call::truncate, EIO, 1},

                                           Kind{Call::allocate, ENOMEM, 1}, Kind{Call::allocate, ENOMEM, 3},
                                           Kind{Call::allocate, ENOMEM, kForGood}),
                         [](const auto& chosen) {
                           return std::string(kCallNames[static_cast<int>(chosen.param.call)]) +
                                  std::to_string(chosen.param.error) + "x" +
                                  (chosen.param.repeat == kForGood ? "all" : std::to_string(chosen.param.repeat));
                         });

}  // namespace
}  // namespace cleave::faults
