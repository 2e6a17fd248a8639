// What the planner predicts for one operation is what the simulated fleet takes for it, to the last digit, when nothing
// is disturbed; and no way of cutting an operation, good or bad, is done before the lower bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cleave/base/random.hpp"
#include "cleave/plan/bound.hpp"
#include "cleave/sched/simulated_fleet.hpp"

namespace cleave::sched {
namespace {

Seconds simulated(const plan::Work& work, std::span<const plan::TaskletPlan> tasklets,
                  std::vector<fleet::DeviceProfile> devices, const fleet::ServerProfile& server) {
  model::StepGraph graph;
  model::Operation op;
  op.id = OpId(0);
  op.kind = model::OpKind::gemm;
  op.gemm = work.gemm;
  graph.operations.push_back(op);
  SimulatedFleet fleet(std::move(devices), server, work.wire);
  fleet.begin_step(graph);
  std::int64_t next = 0;
  for (const plan::TaskletPlan& piece : tasklets) {
    Tasklet tasklet;
    tasklet.id = TaskletId(next++);
    tasklet.op = op.id;
    tasklet.piece = piece;
    fleet.submit(tasklet);
  }
  Seconds last{0};
  for (std::int64_t done = 0; done < next;) {
    const Event event = fleet.next_event(Seconds(1e18));
    if (event.kind == EventKind::timeout) return Seconds(-1);
    if (event.kind != EventKind::done) continue;
    ++done;
    last = event.at;
  }
  return last;
}

TEST(PlannedTime, IsWhatTheSimulatedFleetTakes) {
  const fleet::DeviceGroup edge{.name = "edge",
                                .count = 1,
                                .compute_flops = {5e12, 7e12},
                                .memory_bytes = {1e9, 3e9},
                                .downlink_bytes = {10e6, 100e6},
                                .uplink_bytes = {5e6, 10e6},
                                .latency_s = {0, 0.02}};
  fleet::ServerProfile unlimited, narrow;
  unlimited.nic_out = unlimited.nic_in = fleet::kUnlimitedRate;
  narrow.nic_out = narrow.nic_in = BytesPerSecond(1e9);
  const std::pair<plan::Partition, plan::Objective> kinds[] = {{plan::Partition::automatic, plan::Objective::step},
                                                               {plan::Partition::automatic, plan::Objective::alone},
                                                               {plan::Partition::equal, plan::Objective::step}};
  for (const std::int64_t count : {1, 8, 100, 400}) {
    for (const double memory : {1e9, 2e7}) {
      fleet::DeviceGroup group = edge;
      group.count = count;
      group.memory_bytes = {memory, 2 * memory};
      const std::vector<fleet::DeviceProfile> devices = fleet::draw_devices({group}, 7);
      std::vector<plan::DeviceState> states;
      for (const fleet::DeviceProfile& profile : devices) {
        plan::DeviceState state;
        state.profile = profile;
        states.push_back(state);
      }
      for (const fleet::ServerProfile& server : {fleet::ServerProfile{}, unlimited, narrow}) {
        for (const GemmShape& shape : {GemmShape{8192, 4096, 4096}, GemmShape{2048, 2048, 65536}}) {
          for (const auto& [scheme, objective] : kinds) {
            plan::Work work;
            work.gemm = shape;
            work.wire = DType::f16;
            plan::PlanOptions options;
            options.partition = scheme;
            options.objective = objective;
            options.server = server;
            const plan::OperationPlan plan = plan::plan_operation(work, states, options);
            const Seconds took = simulated(work, plan.tasklets, devices, server);
            EXPECT_EQ(took, plan.time) << count << " devices, memory " << memory << ", k " << shape.k << ", interface "
                                       << server.nic_out.value() << ", scheme " << scheme.name() << ", objective "
                                       << static_cast<int>(objective);
          }
        }
      }
    }
  }
}

// A box to each of these devices: cut in two along any side, about in proportion to what the devices of each part can
// move, until there is one device to a box.
class RandomTiling {
 public:
  RandomTiling(std::span<const fleet::DeviceProfile> devices, std::uint32_t seed)
      : devices_(devices), random_(31, Purpose::test, seed) {}

  std::vector<plan::TaskletPlan> cut(const GemmBox& box) {
    cut(box, 0, devices_.size());
    return std::move(tasklets_);
  }

 private:
  [[nodiscard]] double power(std::size_t first, std::size_t last) const {
    double sum = 0;
    for (std::size_t i = first; i < last; ++i) {
      sum += std::sqrt(devices_[i].downlink.value() * devices_[i].uplink.value());
    }
    return sum;
  }

  void cut(const GemmBox& box, std::size_t first, std::size_t last) {
    if (last - first > 1) {
      const std::size_t middle = first + (last - first) / 2;
      const double share = power(first, middle) / power(first, last) * std::exp(0.2 * (random_.uniform(next_++) - 0.5));
      for (int tries = 0; tries < 3; ++tries) {
        GemmBox low = box, high = box;
        const auto part = [&](std::int64_t total) -> std::int64_t {
          return std::llround(share * static_cast<double>(total));
        };
        switch (random_.below(next_++, 3)) {
          case 0: low.m1 = high.m0 = box.m0 + part(box.m()); break;
          case 1: low.n1 = high.n0 = box.n0 + part(box.n()); break;
          default: low.k1 = high.k0 = std::min(box.k1, box.k0 + kBlockK * part(k_blocks(box.k()))); break;
        }
        if (std::min({low.m(), low.n(), low.k(), high.m(), high.n(), high.k()}) <= 0) continue;
        cut(low, first, middle);
        return cut(high, middle, last);
      }
    }
    plan::TaskletPlan tasklet;
    tasklet.device = devices_[first].id;
    tasklet.box = box;
    tasklet.order = random_.below(next_++, 2) == 0 ? PanelOrder::wavefront : PanelOrder::row_resident;
    tasklet.panels = std::min<std::int64_t>(32, std::max(box.m(), box.n()));
    tasklets_.push_back(tasklet);
  }

  std::span<const fleet::DeviceProfile> devices_;
  Random random_;
  std::uint64_t next_ = 0;
  std::vector<plan::TaskletPlan> tasklets_;
};

TEST(LowerBound, NoTilingIsFaster) {
  double closest = 1e9, closest_narrow = 1e9;
  for (std::uint32_t i = 0; i < 600; ++i) {
    const Random random(77, Purpose::test, i);
    std::uint64_t next = 0;
    const auto spread = [&](double low, double high) { return low * std::pow(high / low, random.uniform(next++)); };
    const auto whole = [&](double low, double high) { return static_cast<std::int64_t>(spread(low, high)); };
    plan::Work work;
    work.gemm = {whole(20, 6000), whole(20, 6000), whole(100, 60000)};
    work.wire = DType::f16;
    const double unlike = spread(1, 10), down = spread(1e6, 1e8), up = spread(1e6, 1e8), latency = spread(1e-4, 0.1);
    std::vector<fleet::DeviceProfile> devices;
    const std::int64_t count = whole(1, 40);
    for (std::int64_t d = 0; d < count; ++d) {
      fleet::DeviceProfile device;
      device.id = DeviceId(d);
      device.compute = FlopsPerSecond(spread(1e12, 1e13));
      device.memory = Bytes(std::int64_t{1} << 40);
      device.downlink = BytesPerSecond(down * spread(1, unlike));
      device.uplink = BytesPerSecond(up * spread(1, unlike));
      if (i % 3 != 0) device.latency = Seconds(latency * spread(1, 2));
      devices.push_back(device);
    }
    const bool narrow = i % 2 == 0;
    plan::PlanOptions options;
    if (narrow) {
      options.server.nic_out = BytesPerSecond(down * spread(0.5, 5));
      options.server.nic_in = BytesPerSecond(up * spread(0.5, 5));
    }
    std::vector<plan::DeviceState> states;
    for (const fleet::DeviceProfile& device : devices) states.push_back({device, {}, {}, {}});
    const Seconds bound = plan::lower_bound(work, states, options);
    const GemmBox box{0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
    for (std::uint32_t cut = 0; cut < 4; ++cut) {
      const std::vector<plan::TaskletPlan> tasklets = RandomTiling(devices, 4 * i + cut).cut(box);
      const Seconds took = simulated(work, tasklets, devices, options.server);
      EXPECT_GE(took / bound, 1 - 1e-4) << "case " << i << ", cut " << cut;
      double& least = narrow ? closest_narrow : closest;
      least = std::min(least, took / bound);
    }
  }
  // Some come near enough for a bound that is too high to be seen.
  EXPECT_LE(closest, 1.1);
  EXPECT_LE(closest_narrow, 1.1);
}

}  // namespace
}  // namespace cleave::sched
