// Devices that hold no more than they have: what is planned for a device, its own books never refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "churn_schedule.hpp"
#include "cleave/base/sanitizer.hpp"
#include "faulty_run.hpp"
#include "run.hpp"
#include "short_memory.hpp"

namespace cleave::testing_run {
namespace {

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::uint64_t kSchedulesPerMemory = 1;            // five times as slow, and for memory alone
constexpr double kMemoryStep = 3.2, kLossMemoryStep = 4.5;  // from one memory to the next
constexpr int kMemoryLayouts = 50;
#else
constexpr std::uint64_t kSchedulesPerMemory = 3;
constexpr double kMemoryStep = 1.31, kLossMemoryStep = 1.47;
constexpr int kMemoryLayouts = 250;
#endif

// Training in stages on devices of so much memory each; whether there is a layout.
bool nobody_refuses(Setting s, std::int64_t memory, std::uint64_t wanted) {
  set_memory(s, memory);
  if (!plan_of(s)) return false;
  SCOPED_TRACE(testing::Message() << s.model.family << ' ' << name_of(s.wire) << ", " << s.devices.size()
                                  << " devices of " << memory);
  const Outcome got = train(s);
  EXPECT_EQ(got.hash, wanted);
  EXPECT_EQ(got.rejected, 0);
  EXPECT_TRUE(got.distrusted.empty());
  return true;
}

TEST(MemoryCaps, OfEveryLayout) {
  int layouts = 0;
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    for (const Wire& wire : kWires) {
      Setting plain = with_wire(deep_setting(), wire);
      plain.model.family = family;
      const std::uint64_t wanted = train(plain).hash;
      for (const std::int64_t devices : {1, 3, 4}) {
        for (double memory = 2e4; memory < 4e6; memory *= kMemoryStep)
          layouts +=
              nobody_refuses(in_stages(plain, unlike_devices(devices), 2), static_cast<std::int64_t>(memory), wanted)
                  ? 1
                  : 0;
      }
    }
  }
  EXPECT_GE(layouts, kMemoryLayouts);
}

// What lost devices had goes to others, which have no more memory for it than before.
TEST(MemoryCaps, AfterLosses) {
  for (const Wire& wire : kWires) {
    const Setting plain = with_wire(deep_setting(), wire);
    const std::uint64_t wanted = train(plain).hash;
    for (double memory = 4e4; memory < 4e6; memory *= kLossMemoryStep) {
      Setting calm = in_stages(plain, unlike_devices(5), 2);
      set_memory(calm, static_cast<std::int64_t>(memory));
      if (!plan_of(calm)) continue;
      const Seconds whole = train(calm).time;
      for (std::uint64_t seed = 1; seed <= kSchedulesPerMemory; ++seed) {
        Setting s = calm;
        s.churn = random_schedule(seed, std::ssize(s.devices), whole, /*liars=*/false);
        nobody_refuses(s, static_cast<std::int64_t>(memory), wanted);
      }
    }
  }
}

}  // namespace
}  // namespace cleave::testing_run
