// Closed forms of the exchanges; bytes sent are bytes received.
#include "collective.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cleave/plan/cost.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

constexpr double kHeader = static_cast<double>(plan::kMessageHeader.value());

std::vector<std::size_t> first(std::size_t n) {
  std::vector<std::size_t> members(n);
  std::iota(members.begin(), members.end(), std::size_t{0});
  return members;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// 2 (g-1) (bytes/g + header) / rate + 2 (g-1) latency, the latency being that of both ends.
TEST(Collective, RingOfEqualDevices) {
  const fleet::LinkMatrix none;
  for (const std::int64_t g : {2, 3, 8, 64}) {
    const std::vector<fleet::DeviceProfile> devices = equal_devices(g, 1e9, 2e6, 0.003);
    const Network network(devices, none);
    const double bytes = 1e8, n = static_cast<double>(g);
    const CollectiveCost ring = ring_all_reduce(network, first(static_cast<std::size_t>(g)), bytes);
    EXPECT_NEAR(ring.time_s, 2 * (n - 1) * ((bytes / n + kHeader) / 2e6 + 0.006), 1e-9);
    EXPECT_NEAR(ring.bytes_up[0], 2 * (n - 1) * (bytes / n + kHeader), 1e-3);
    EXPECT_NEAR(ring.bytes_down[0], ring.bytes_up[0], 1e-3);
  }
}

TEST(Collective, RingGoesAtThePaceOfTheSlowestUplink) {
  const fleet::LinkMatrix none;
  std::vector<fleet::DeviceProfile> devices = equal_devices(5, 1e9, 8e6);
  devices[3].uplink = BytesPerSecond(1e6);
  const Network network(devices, none);
  EXPECT_NEAR(ring_all_reduce(network, first(5), 1e7).time_s, 8 * (2e6 + kHeader) / 1e6, 1e-9);
}

// Two phases; in each a member sends g-1 shards one after the other.
TEST(Collective, ShardedExchangeOfEqualDevices) {
  const fleet::LinkMatrix none;
  const std::vector<fleet::DeviceProfile> devices = equal_devices(6, 1e9, 2e6, 0.01);
  const Network network(devices, none);
  EXPECT_NEAR(sharded_exchange(network, first(6), 6e7).time_s, 2 * 5 * (1e7 + kHeader) / 2e6 + 2 * 0.02, 1e-9);
}

TEST(Collective, OneDeviceExchangesNothing) {
  const fleet::LinkMatrix none;
  const std::vector<fleet::DeviceProfile> devices = equal_devices(1, 1e9, 2e6);
  const Network network(devices, none);
  EXPECT_EQ(ring_all_reduce(network, first(1), 1e9).time_s, 0);
  EXPECT_EQ(sharded_exchange(network, first(1), 1e9).time_s, 0);
}

TEST(Collective, BytesSentAreBytesReceived) {
  const fleet::LinkMatrix none;
  const std::vector<fleet::DeviceProfile> devices = unlike_devices(9, 5);
  const Network network(devices, none);
  for (const CollectiveCost& exchange :
       {ring_all_reduce(network, first(9), 12345678), sharded_exchange(network, first(9), 12345678)}) {
    EXPECT_NEAR(sum(exchange.bytes_up), sum(exchange.bytes_down), 1e-3);
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_LE(exchange.up_s[i], exchange.time_s * (1 + 1e-12));
      EXPECT_LE(exchange.down_s[i], exchange.time_s * (1 + 1e-12));
    }
  }
}

// Groups of 3 and 2, 60 bytes: in parts of 10, the first has 0-2 for 0 and half of 1, and so on.
TEST(Collective, GroupsExchangeWhatTheyHaveInCommon) {
  const fleet::LinkMatrix none;
  const std::vector<fleet::DeviceProfile> devices = equal_devices(5, 1e9, 1e3, 0.5);
  const Network network(devices, none);
  const std::vector<std::size_t> three{0, 1, 2}, two{3, 4};
  const CollectiveCost exchange = exchange_between(network, three, two, 6000);
  const double header = kHeader;
  const std::vector<double> bytes{2000 + header, 2000 + 2 * header, 2000 + header, 3000 + 2 * header,
                                  3000 + 2 * header};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(exchange.bytes_up[i], bytes[i], 1e-6) << i;
    EXPECT_NEAR(exchange.bytes_down[i], bytes[i], 1e-6) << i;
    EXPECT_NEAR(exchange.up_s[i], bytes[i] / 1e3, 1e-9) << i;
  }
  EXPECT_NEAR(exchange.time_s, (3000 + 2 * header) / 1e3 + 1, 1e-9);
}

TEST(Network, AMatrixStandsInForTheProfiles) {
  const std::vector<fleet::DeviceProfile> devices = equal_devices(3, 1e9, 2e6, 0.01);
  fleet::LinkMatrix links(3, {Seconds(0.5), BytesPerSecond(1e3)});
  links.set(DeviceId(0), DeviceId(2), {Seconds(0.1), BytesPerSecond(4e3)});
  const Network network(devices, links);
  EXPECT_EQ(network.rate(0, 2), 4e3);
  EXPECT_EQ(network.latency_s(0, 2), 0.1);
  EXPECT_EQ(network.rate(2, 0), 1e3);
  EXPECT_NEAR(network.hop(0, 2, 4e3 - kHeader).time_s(), 1.1, 1e-12);
}

// Without looking at every pair, what one would find by looking at every pair.
TEST(Network, ExtremesOfGroupsAreThoseOfTheirPairs) {
  const fleet::LinkMatrix none;
  const std::vector<fleet::DeviceProfile> devices = unlike_devices(9, 5);
  const Network network(devices, none);
  const std::vector<std::size_t> from{0, 3, 4, 7}, to{1, 2, 5, 6, 8};
  double slowest = std::numeric_limits<double>::infinity(), longest_s = 0;
  for (const std::size_t i : from) {
    for (const std::size_t j : to) {
      slowest = std::min(slowest, std::min(devices[i].uplink, devices[j].downlink).value());
      longest_s = std::max(longest_s, (devices[i].latency + devices[j].latency).value());
    }
  }
  EXPECT_DOUBLE_EQ(network.slowest_rate(from, to), slowest);
  EXPECT_DOUBLE_EQ(network.longest_latency_s(from, to), longest_s);
}

}  // namespace
}  // namespace cleave::rivals
