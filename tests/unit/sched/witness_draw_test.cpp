// Who is drawn to witness whom: the chances of docs/security.md, against the draws themselves.
#include <cmath>

#include "cleave/plan/cost.hpp"
#include "graphs.hpp"
#include "quorum/witness_draw.hpp"

namespace cleave::sched {
namespace {

struct Draws {
  model::StepGraph graph = graph_of({gemm(0, {64, 64, 64})});
  SimulatedFleet fleet;
  QuorumOptions options;
  WitnessDraw draw{fleet, options};

  Draws(std::vector<fleet::DeviceProfile> devices, double fraction)
      : fleet(std::move(devices), wide_server(), DType::f32),
        options{.fraction = fraction, .plan = {.server = wide_server()}} {
    options.secret[3] = std::byte{7};
    draw.begin_step(graph);
  }

  // Who witnesses tasklet `id` of device `first`; invalid: nobody.
  DeviceId witness_of(std::int64_t id, DeviceId first) {
    Tasklet tasklet;
    tasklet.id = TaskletId(id);
    tasklet.op = OpId(0);
    tasklet.piece.device = first;
    tasklet.piece.box = {0, 64, 0, 64, 0, 64};
    tasklet.piece.bytes_down = Bytes(32768);
    const auto witness = draw.draw(tasklet, 1);
    if (!witness) return {};
    draw.give_back(witness->piece.device, witness->takes);
    return witness->piece.device;
  }
};

std::vector<fleet::DeviceProfile> alike(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t id = 0; id < count; ++id) devices.push_back(device(id, 1e9, 1e7, 5e6));
  return devices;
}

// q = f (1 - c): a false block of a coalition is found with this chance, and m of them in a row stand with (1 - q)^m.
TEST(WitnessDraw, FalseBlocksOfACoalitionStandAsOftenAsStated) {
  constexpr std::int64_t kDevices = 20, kRuns = 4000;
  for (const double fraction : {0.1, 0.5, 1.0}) {
    for (const std::int64_t coalition : {1, 4, 10}) {
      for (const std::int64_t blocks : {1, 5}) {
        Draws draws(alike(kDevices), fraction);
        std::int64_t stood = 0, id = 0;
        for (std::int64_t run = 0; run < kRuns; ++run) {
          bool found_out = false;
          for (std::int64_t block = 0; block < blocks; ++block, ++id) {
            if (!draws.draw.is_drawn(TaskletId(id))) continue;
            const DeviceId witness = draws.witness_of(id, DeviceId(id % coalition));
            ASSERT_TRUE(witness.valid());
            found_out = found_out || witness.value >= coalition;
          }
          stood += found_out ? 0 : 1;
        }
        const double others = static_cast<double>(kDevices - coalition) / static_cast<double>(kDevices - 1);
        const double stated = std::pow(1 - fraction * others, static_cast<double>(blocks));
        const double deviation = std::sqrt(stated * (1 - stated) / kRuns);
        EXPECT_NEAR(static_cast<double>(stood) / kRuns, stated, 5 * deviation + 1e-12)
            << fraction << " " << coalition << " " << blocks;
      }
    }
  }
}

// Devices that are much quicker than others witness more, but no more than four times their share.
TEST(WitnessDraw, QuickDevicesDoNotWitnessEverything) {
  constexpr std::int64_t kDevices = 40, kQuickOnes = 4, kDraws = 4000;
  std::vector<fleet::DeviceProfile> devices = alike(kDevices);
  for (std::int64_t id = 0; id < kQuickOnes; ++id) devices[static_cast<std::size_t>(id)] = device(id, 1e11, 1e9, 5e6);
  Draws draws(std::move(devices), 1.0);
  std::int64_t quick = 0;
  for (std::int64_t id = 0; id < kDraws; ++id)
    quick += draws.witness_of(id, DeviceId(kDevices - 1)).value < kQuickOnes ? 1 : 0;
  EXPECT_LE(static_cast<double>(quick) / kDraws, 4.0 * kQuickOnes / kDevices);
}

TEST(WitnessDraw, NobodyWitnessesWhomHeBelongsTo) {
  std::vector<fleet::DeviceProfile> devices = alike(6);
  for (const std::size_t id : {0U, 1U}) devices[id].owner = "one";
  for (const std::size_t id : {0U, 2U}) devices[id].group = "two";
  Draws draws(std::move(devices), 1.0);
  draws.options.hosts = {"a", "b", "b", "a", "c", "c"};
  std::set<DeviceId> witnesses;
  for (std::int64_t id = 0; id < 200; ++id) witnesses.insert(draws.witness_of(id, DeviceId(0)));
  EXPECT_EQ(witnesses, (std::set<DeviceId>{DeviceId(4), DeviceId(5)}));
  draws.draw.distrust(DeviceId(4));
  for (std::int64_t id = 0; id < 200; ++id) EXPECT_EQ(draws.witness_of(id, DeviceId(0)), DeviceId(5));
  draws.draw.distrust(DeviceId(5));
  EXPECT_FALSE(draws.witness_of(0, DeviceId(0)).valid());
}

}  // namespace
}  // namespace cleave::sched
