// A fifth of the devices lie, at any rate from 1 % of their tasklets on: what is trained is what honest devices would
// have trained. build/release/bench/quorum_trace runs more seeds.
#include <gtest/gtest.h>

#include <algorithm>

#include "liar_runs.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using fleet::InjectedFaultKind;
using testing_support::all_or_few;

constexpr std::uint64_t kRuns = all_or_few(5, 1);

TEST(Liars, AFifthOfTheDevicesLeavesNoTrace) {
  Setting s = liar_run_setting();
  const std::uint64_t honest = honest_bits(s);
  for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
    s.churn = {draw_liar(seed)};
    s.verification.seed = seed;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest) << seed;
    EXPECT_EQ(outcome.distrusted, std::vector{s.churn[0].device}) << seed;
    EXPECT_EQ(outcome.parts_stay, 0) << seed;
  }
}

// Two that lie alike confirm each other where they meet; whatever they did goes with the one that did it.
TEST(Liars, APairThatColludesLeavesNoTraceEither) {
  Setting s = liar_run_setting();
  s.steps = 12;
  s.verification.fraction = 0.3;
  s.churn = {{Seconds(0), DeviceId(0), fleet::ChurnKind::faulty, 0.3, InjectedFaultKind::colluding},
             {Seconds(0), DeviceId(3), fleet::ChurnKind::faulty, 0.3, InjectedFaultKind::colluding}};
  Outcome outcome = train(s);
  std::ranges::sort(outcome.distrusted);
  EXPECT_EQ(outcome.distrusted, (std::vector{DeviceId(0), DeviceId(3)}));
  EXPECT_EQ(outcome.hash, honest_bits(s));
}

// Who lies for a moment and is seen then is taken back as far as who lies all the time.
TEST(Liars, WhoLiesOnceAndIsSeenLeavesNoTrace) {
  Setting s = liar_run_setting();
  s.steps = 4;
  const Seconds step = train(s).time / 4;
  s.verification.fraction = 1.0;
  const std::uint64_t honest = honest_bits(s);
  std::int64_t found = 0;
  for (int run = all_or_few(0, 1); run < all_or_few(3, 2); ++run) {
    const Seconds at = step * (1.2 + 0.7 * run);
    s.churn = {{at, DeviceId(2), fleet::ChurnKind::faulty, 1.0, InjectedFaultKind::element},
               {at + step * 0.1, DeviceId(2), fleet::ChurnKind::faulty, 0.0, InjectedFaultKind::element}};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest);
    found += std::ssize(outcome.distrusted);
    // Where second devices had confirmed all that it did in the steps before, there is nothing to take back.
    if (outcome.taken_back > 0) { EXPECT_FALSE(outcome.distrusted.empty()); }
    EXPECT_EQ(outcome.parts_stay, 0);
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace cleave::testing_run
