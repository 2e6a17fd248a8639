// The shorter way to the time of streams alone gives what the star gives, to the last digit; and it is seldom given up.
#include "cleave/timing/alone.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "alone/two_passes.hpp"
#include "cleave/base/random.hpp"
#include "cleave/timing/star.hpp"

namespace cleave::timing {
namespace {

struct Case {
  std::vector<DeviceState> devices;
  fleet::ServerProfile server;
  std::vector<Submission> streams;
};

// What a caller would write with the star alone.
Seconds in_star(const Case& c) {
  std::vector<fleet::DeviceProfile> profiles;
  for (const DeviceState& device : c.devices) profiles.push_back(device.profile);
  Star star(profiles, c.server);
  for (std::size_t d = 0; d < c.devices.size(); ++d) {
    star.occupy(d, c.devices[d].down_busy, c.devices[d].compute_busy, c.devices[d].up_busy);
  }
  std::vector<Stream> streams(c.streams.size());
  for (std::size_t s = 0; s < streams.size(); ++s) {
    streams[s].id = static_cast<std::int64_t>(s);
    streams[s].panels = c.streams[s].panels;
    streams[s].resident = c.streams[s].resident;
    for (PanelSequence panels = streams[s].panels; panels.made() < panels.size();) {
      const Panel panel = panels.next();
      streams[s].bytes_down += panel.down;
      streams[s].bytes_up += panel.up;
      streams[s].flops = streams[s].flops + panel.flops;
    }
    star.submit(c.streams[s].device, streams[s]);
  }
  Seconds last{0};
  std::size_t answers = 0;
  for (; star.next_answer() != nullptr; ++answers) last = star.now();
  EXPECT_EQ(answers, streams.size());
  return last;
}

// Devices that are all alike, or unlike; a port that binds, hardly binds or is unlimited one way or both; some devices
// taken by earlier work; memory for everything, or not.
Case random_case(std::uint32_t number) {
  const Random random(17, Purpose::test, number);
  std::uint64_t draw = 0;
  const auto spread = [&](double low, double high) { return low * std::pow(high / low, random.uniform(draw++)); };
  const auto whole = [&](double low, double high) { return static_cast<std::int64_t>(spread(low, high)); };
  const bool alike = number % 3 == 0, busy = number % 5 == 0, narrow_memory = number % 7 == 0;
  Case c;
  const double port = std::vector<double>{1e7, 2e8, 1e10}[number % 3];
  c.server.nic_out = number % 11 == 0 ? fleet::kUnlimitedRate : BytesPerSecond(port);
  c.server.nic_in = number % 13 == 0 ? fleet::kUnlimitedRate : BytesPerSecond(port);
  const std::int64_t count = whole(1, 40);
  for (std::int64_t d = 0; d < count; ++d) {
    DeviceState device;
    device.profile.id = DeviceId(d);
    device.profile.compute = FlopsPerSecond(alike ? 1e12 : spread(1e11, 1e13));
    device.profile.memory = Bytes(narrow_memory ? 1500 : 1'000'000);
    device.profile.downlink = BytesPerSecond(alike ? 1e7 : spread(1e6, 1e8));
    device.profile.uplink = BytesPerSecond(alike ? 5e6 : spread(1e6, 1e8));
    device.profile.latency = Seconds(number % 2 == 0 ? 0.0 : alike ? 0.01 : spread(1e-3, 0.1));
    if (busy) {
      device.down_busy = Seconds(spread(1e-3, 1));
      device.compute_busy = Seconds(spread(1e-3, 1));
      device.up_busy = Seconds(spread(1e-3, 1));
    }
    c.devices.push_back(device);
  }
  const std::int64_t streams = whole(1, 3.0 * static_cast<double>(count));
  for (std::int64_t s = 0; s < streams; ++s) {
    Submission stream;
    stream.device = static_cast<std::size_t>(random.below(draw++, static_cast<std::uint32_t>(count)));
    stream.resident = Bytes(1000);
    const std::int64_t size = alike ? 100 : whole(10, 1000);
    switch (random.below(draw++, 3)) {
      case 0: stream.panels = PanelSequence::runs(size, 1 + size / 20, {4096, 2048, 1e8}, 5000); break;
      case 1: stream.panels = PanelSequence::wavefront(size, size / 2 + 1, 1 + size / 30, 4096, {0, 2, 1e5}); break;
      default: stream.panels = PanelSequence::result_resident(kBlockK * 9, size * size, 17, size * 8000, {0, 4, 2.0});
    }
    c.streams.push_back(stream);
  }
  return c;
}

TEST(Alone, IsTheStarsTimeToTheLastDigit) {
  int shorter = 0, streams_that_wait = 0;
  for (std::uint32_t number = 0; number < 400; ++number) {
    const Case c = random_case(number);
    const Seconds expected = in_star(c);
    EXPECT_EQ(time_alone(c.streams, c.devices, c.server), expected) << "case " << number;
    if (number % 7 == 0) {
      ++streams_that_wait;  // for memory: not for the two passes
    } else if (const std::optional<Seconds> time = two_passes(c.streams, c.devices, c.server)) {
      ++shorter;
      EXPECT_EQ(*time, expected) << "case " << number;
    }
  }
  EXPECT_GT(streams_that_wait, 50);
  EXPECT_GT(shorter, 250);
}

TEST(Alone, NoStreamsTakeNoTime) {
  EXPECT_EQ(time_alone({}, std::vector<DeviceState>(3), fleet::ServerProfile{}), Seconds(0));
}

}  // namespace
}  // namespace cleave::timing
