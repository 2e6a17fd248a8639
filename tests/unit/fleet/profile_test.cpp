// Devices drawn from groups: within their ranges, and each a function of the seed and its index alone.
#include "cleave/fleet/profile.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace cleave::fleet {
namespace {

DeviceGroup edge(std::int64_t count) {
  return {.name = "edge",
          .count = count,
          .compute_flops = {5e12, 7e12},
          .memory_bytes = {1e9, 3e9},
          .downlink_bytes = {10e6, 100e6},
          .uplink_bytes = {5e6, 10e6},
          .latency_s = {0, 0.02},
          .jitter_s = {0.001, 0.001},
          .owner = "somebody"};
}

TEST(DrawDevices, AreNumberedInOrderOfTheGroupsAndWithinTheirRanges) {
  DeviceGroup phones = edge(3);
  phones.name = "phone";
  phones.compute_flops = {1e12, 1e12};
  const std::vector<DeviceProfile> devices = draw_devices({edge(200), phones}, 42);
  ASSERT_EQ(devices.size(), 203U);
  double least = 1e18, most = 0, sum = 0;
  for (std::size_t d = 0; d < 200; ++d) {
    const DeviceProfile& device = devices[d];
    EXPECT_EQ(device.id, DeviceId(static_cast<std::int64_t>(d)));
    EXPECT_EQ(device.name, "edge");
    EXPECT_EQ(device.owner, "somebody");
    EXPECT_GE(device.memory.value(), 1'000'000'000);
    EXPECT_LE(device.memory.value(), 3'000'000'000);
    EXPECT_GE(device.uplink.value(), 5e6);
    EXPECT_LT(device.uplink.value(), 10e6);
    EXPECT_LT(device.latency.value(), 0.02);
    EXPECT_EQ(device.jitter, Seconds(0.001));
    least = std::min(least, device.downlink.value());
    most = std::max(most, device.downlink.value());
    sum += device.downlink.value();
  }
  // Uniform over the whole range: 200 draws come near both ends, and their mean is off by a standard deviation or two.
  EXPECT_GE(least, 10e6);
  EXPECT_LT(least, 14e6);
  EXPECT_GT(most, 96e6);
  EXPECT_LT(most, 100e6);
  EXPECT_NEAR(sum / 200, 55e6, 3 * 90e6 / std::sqrt(12.0 * 200));
  EXPECT_EQ(devices[200].id, DeviceId(200));
  EXPECT_EQ(devices[200].name, "phone");
  EXPECT_EQ(devices[200].compute.value(), 1e12);
}

TEST(DrawDevices, AGroupMoreOrAnotherSeedChangesWhatItShould) {
  const std::vector<DeviceProfile> few = draw_devices({edge(5)}, 42), more = draw_devices({edge(5), edge(7)}, 42);
  const std::vector<DeviceProfile> others = draw_devices({edge(5)}, 43);
  for (std::size_t d = 0; d < few.size(); ++d) {
    EXPECT_EQ(few[d].compute, more[d].compute);
    EXPECT_EQ(few[d].memory, more[d].memory);
    EXPECT_EQ(few[d].downlink, more[d].downlink);
    EXPECT_EQ(few[d].latency, more[d].latency);
    EXPECT_NE(few[d].downlink, others[d].downlink);
  }
  // Figures of one device do not follow from each other.
  EXPECT_NE((few[0].compute.value() - 5e12) / 2e12, (few[0].downlink.value() - 10e6) / 90e6);
}

TEST(DrawDevices, AnUnlimitedRateStaysUnlimited) {
  DeviceGroup group = edge(1);
  group.downlink_bytes = {kUnlimitedRate.value(), kUnlimitedRate.value()};
  EXPECT_TRUE(std::isinf(draw_devices({group}, 1)[0].downlink.value()));
}

}  // namespace
}  // namespace cleave::fleet
