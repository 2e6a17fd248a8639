// The n-th call fails, for every n: open, write, fsync, rename, remove, truncate, and memory, over a
// short run that goes on from a checkpoint and writes more.
//
// Each time the run ends with its own bits and exit code 0, or with another code and a reason; it never hangs, leaves
// no checkpoint that is damaged, lies about none, and what it leaves can be gone on from. In brief some n of each kind
// are tried; CLEAVE_FAULT_FULL=1 tries all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "run.hpp"

namespace cleave::faults {
namespace {

constexpr int kLast = 6;

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

  Workshop shop_;
  fs::path calm_ = shop_.top() / "calm", start_ = shop_.top() / "start", run_ = shop_.top() / "run";
  std::vector<std::string> arguments_{"train.steps=" + std::to_string(kLast), "output.dir=" + run_.string(), "--resume",
                                      "auto"};
  std::uint64_t wanted_ = 0;
};

TEST_P(NthCall, IsSurvivedOrSaid) {
  const Kind& kind = GetParam();
  ASSERT_EQ(run({}).code, 0);
  const std::int64_t calls = shop_.ledger().calls(kind.call);
  ASSERT_GT(calls, 0) << "nothing to make fail";
  const std::int64_t some = kind.call == Call::allocate ? 60 : 25;
  const std::int64_t apart = thorough() ? 1 : std::max<std::int64_t>(1, calls / some);
  int tried = 0, survived = 0;
  for (std::int64_t n = 1; n <= calls && !HasFailure(); n += apart) {
    SCOPED_TRACE(testing::Message() << kind << ", call " << n << " of " << calls);
    const Ended ended =
        run({.call = kind.call, .nth = n, .repeat = kind.repeat, .error = kind.error, .root = run_.string()});
    if (!shop_.ledger().injected()) continue;  // calls differ a little from run to run
    ++tried;
    ASSERT_FALSE(ended.hung()) << "it hangs";
    // BLIS ends the process itself when it gets no memory, and says so.
    const bool given_up_by_blis =
        ended.code == 128 + SIGABRT && ended.said.find("libblis: malloc() returned NULL") != std::string::npos;
    EXPECT_TRUE(ended.code < 128 || given_up_by_blis) << "signal " << ended.code - 128 << ": " << ended.said;
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
      ++survived;
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
                                           Kind{Call::allocate, ENOMEM, 1}),
                         [](const auto& chosen) {
                           return std::string(kCallNames[static_cast<int>(chosen.param.call)]) +
                                  std::to_string(chosen.param.error) + "x" + std::to_string(chosen.param.repeat);
                         });

}  // namespace
}  // namespace cleave::faults
