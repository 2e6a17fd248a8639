// Who is late: by what devices did while they had work, beside what they do at believed rates, and beside each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "stages/late_watch.hpp"

namespace cleave::sched::stages {
namespace {

constexpr fleet::ServerProfile kUnlimited{fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1e12),
                                          BytesPerSecond(1e11)};

// Devices that carry 100 bytes a second each way and compute 100 FLOP a second.
struct Devices {
  explicit Devices(std::int64_t count, const fleet::ServerProfile& server = kUnlimited, Seconds latency = Seconds(0)) {
    for (std::int64_t i = 0; i < count; ++i) {
      timing::DeviceState state;
      state.profile.id = DeviceId(i);
      state.profile.downlink = state.profile.uplink = BytesPerSecond(100);
      state.profile.compute = FlopsPerSecond(100);
      state.profile.latency = latency;
      states.push_back(state);
    }
    watch.begin(Seconds(0), Seconds(1), server, states);
  }
  // So many panels of 10 bytes for every device.
  void send(std::int64_t panels) {
    const plan::PanelRun run{.each = {Bytes(10), Flops(0), Bytes(0)}, .panels = panels, .last_up = Bytes(0)};
    for (timing::DeviceState& state : states) {
      watch.sent(state.profile, run, true, now);
      state.down_busy += run.down() / state.profile.downlink;
    }
  }
  // `seconds` go by, in which the i-th device does what takes so many seconds at the rates that are believed.
  std::vector<LateDevice> after(double seconds, const std::vector<double>& done) {
    now += Seconds(seconds);
    for (std::size_t i = 0; i < states.size(); ++i)
      states[i].down_busy = Seconds(std::max(0.0, states[i].down_busy.value() - done[i]));
    return watch.look(now, states);
  }
  // Panels of 10 bytes and so many FLOP for every device. As long as they are not down, they are still to be computed.
  void send_to_compute(std::int64_t panels, double flops) {
    const plan::PanelRun run{.each = {Bytes(10), Flops(flops), Bytes(0)}, .panels = panels, .last_up = Bytes(0)};
    for (timing::DeviceState& state : states) {
      watch.sent(state.profile, run, true, now);
      state.down_busy += run.down() / state.profile.downlink;
      state.compute_busy += run.flops() / state.profile.compute;
    }
  }
  // So many panels of those come down to a device.
  void come_down(std::size_t device, double panels, double flops) {
    states[device].compute_busy -= Seconds(std::min(states[device].compute_busy.value(), panels * flops / 100));
  }
  std::vector<timing::DeviceState> states;
  LateWatch watch;
  Seconds now;
};

TEST(LateWatch, WhoDoesAsIsBelievedIsNotLate) {
  Devices devices(3);
  devices.send(1000);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(devices.after(1, {1, 1, 1.2}).empty());
  EXPECT_LE(devices.watch.worst(), 1);
}

TEST(LateWatch, WhoDoesATenthIsLateByTen) {
  Devices devices(4);
  devices.send(1000);
  std::vector<LateDevice> late;
  int looks = 0;
  for (; late.empty() && looks < 20; ++looks) late = devices.after(1, {1, 0.1, 1, 1});
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].device, 1);
  EXPECT_GE(late[0].factor, LateWatch::kLate);
  EXPECT_LE(late[0].factor, 10);
  EXPECT_GE(late[0].likely, 10);
  EXPECT_LE(late[0].likely, 20) << "a panel that is under way is half done, if no other was";
  EXPECT_LE(looks, 3);
}

// Panels that take it ten looks each, and count when they are begun: it is never taken for faster than it is.
TEST(LateWatch, APanelThatIsUnderWayIsNotDone) {
  Devices devices(4);
  const plan::PanelRun run{.each = {Bytes(100), Flops(0), Bytes(0)}, .panels = 1000, .last_up = Bytes(0)};
  for (timing::DeviceState& state : devices.states) {
    devices.watch.sent(state.profile, run, true, devices.now);
    state.down_busy += run.down() / state.profile.downlink;
  }
  int seen = 0;
  for (int look = 1; look <= 60; ++look) {
    const double begins = look % 10 == 1 ? 1 : 0;
    const std::vector<LateDevice> late = devices.after(1, {1, begins, 1, 1});
    if (late.empty()) continue;
    ASSERT_EQ(late.size(), 1U);
    EXPECT_EQ(late[0].device, 1);
    EXPECT_LE(late[0].factor, 10);
    EXPECT_GE(late[0].likely, std::min(10, 2 * look)) << look;
    EXPECT_LE(late[0].likely, 20) << look;
    if (look > 50) { EXPECT_NEAR(late[0].likely, 11, 1) << look; }
    ++seen;
  }
  EXPECT_GT(seen, 50);
}

TEST(LateWatch, WhoIsTwiceAsSlowIsLeftAlone) {
  Devices devices(4);
  devices.send(1000);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(devices.after(1, {1, 0.5, 1, 1}).empty());
}

// It turns slow long after it began: what it did before does not count for it.
TEST(LateWatch, WhoTurnsSlowIsFoundSoon) {
  Devices devices(4);
  devices.send(10'000);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(devices.after(1, {1, 1, 1, 1}).empty());
  int looks = 0;
  while (devices.after(1, {1, 1, 1, 0.05}).empty()) ASSERT_LT(++looks, 20);
}

// What has not come down yet waits for no processor: who falls silent with much of it is not believed to compute it.
TEST(LateWatch, WhoFallsSilentWithMuchToComputeIsFoundSoon) {
  Devices devices(4);
  devices.send_to_compute(1000, 10);
  const auto after = [&](const std::vector<double>& done) {
    for (std::size_t i = 0; i < done.size(); ++i) devices.come_down(i, 10 * done[i], 10);
    return devices.after(1, done);
  };
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(after({1, 1, 1, 1}).empty());
  std::vector<LateDevice> late;
  int looks = 0;
  for (; late.empty() && looks < 20; ++looks) late = after({1, 0, 1, 1});
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].device, 1);
  EXPECT_LE(looks, 6);
}

// Eight panels of 6 s come down within a second and are computed one after another. Meanwhile nothing comes or goes.
TEST(LateWatch, WhoComputesWhatIsThereIsNotLate) {
  Devices devices(4);
  devices.send_to_compute(8, 600);
  for (std::size_t i = 0; i < 4; ++i) devices.come_down(i, 8, 600);
  for (int second = 1; second <= 48; ++second) EXPECT_TRUE(devices.after(1, {1, 1, 1, 1}).empty()) << second;
  EXPECT_LE(devices.watch.worst(), 1);
  for (const std::int32_t id : {0, 2, 3}) devices.watch.answered(id, 48, devices.now);
  std::vector<LateDevice> late;
  for (int second = 49; late.empty() && second < 200; ++second) late = devices.after(1, {1, 1, 1, 1});
  ASSERT_EQ(late.size(), 1U) << "who says nothing is found all the same";
  EXPECT_EQ(late[0].device, 1);
}

TEST(LateWatch, WhoHasNothingToDoIsNotLate) {
  Devices devices(4);
  devices.send(10);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(devices.after(1, {1, 1, 1, 1}).empty());
    if (i == 0) {
      for (std::int32_t id = 0; id < 4; ++id) devices.watch.answered(id, 0, devices.now);
    }
  }
}

// Weights are not answered, so a device that only takes in weights has no tasklets in hand, and works all the same.
TEST(LateWatch, WhoIsSlowWithWeightsIsLate) {
  Devices devices(4);
  const plan::PanelRun run{.each = {Bytes(10), Flops(0), Bytes(0)}, .panels = 1000, .last_up = Bytes(0)};
  for (timing::DeviceState& state : devices.states) {
    devices.watch.sent(state.profile, run, false, devices.now);
    state.down_busy += run.down() / state.profile.downlink;
  }
  int looks = 0;
  while (devices.after(1, {1, 1, 0.1, 1}).empty()) ASSERT_LT(++looks, 20);
}

// What everybody is late with is the forecast's fault, or that of something that they share.
TEST(LateWatch, WhereAllAreSlowNobodyIsLate) {
  Devices devices(4);
  devices.send(1000);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(devices.after(1, {0.1, 0.1, 0.1, 0.1}).empty());
  EXPECT_GT(devices.watch.worst(), LateWatch::kLate);
}

TEST(LateWatch, WhereManyAreSlowNobodyIsLate) {
  Devices devices(4);
  devices.send(1000);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(devices.after(1, {1, 0.1, 0.1, 1}).empty());
}

// The interface carries 100 bytes a second, of four devices that could take 400: one starves behind the others.
TEST(LateWatch, WhoWaitsForTheServersInterfaceIsNotLate) {
  fleet::ServerProfile narrow = kUnlimited;
  narrow.nic_out = BytesPerSecond(100);
  Devices devices(4, narrow);
  devices.send(1000);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(devices.after(1, {0.5, 0.5, 0, 0}).empty());
}

TEST(LateWatch, MessagesOnTheirWayAreNoWork) {
  Devices devices(1, kUnlimited, Seconds(0.45));
  for (int i = 0; i < 50; ++i) {
    devices.send(1);
    EXPECT_TRUE(devices.after(1, {0.1}).empty());
    devices.watch.answered(0, 0, devices.now);
  }
  EXPECT_LE(devices.watch.worst(), 1);
}

TEST(LateWatch, TwoAnswersThatTookTooLongTell) {
  Devices devices(4);
  devices.send(1000);
  const timing::Measured slow{
      .bytes_down = Bytes(100), .bytes_up = Bytes(0), .flops = Flops(0), .down = Seconds(8), .compute = {}, .up = {}};
  timing::Measured quick = slow;
  quick.down = Seconds(1.5);
  EXPECT_TRUE(devices.watch.measured(devices.states[1].profile, slow));
  EXPECT_FALSE(devices.watch.measured(devices.states[1].profile, quick));
  EXPECT_TRUE(devices.watch.measured(devices.states[1].profile, slow));
  EXPECT_TRUE(devices.after(1, {1, 1, 1, 1}).empty()) << "one answer is no evidence";
  EXPECT_TRUE(devices.watch.measured(devices.states[1].profile, slow));
  const std::vector<LateDevice> late = devices.after(1, {1, 1, 1, 1});
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].device, 1);
  EXPECT_NEAR(late[0].likely, 8, 1e-9);
}

}  // namespace
}  // namespace cleave::sched::stages
