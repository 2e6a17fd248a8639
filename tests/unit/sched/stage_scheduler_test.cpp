// Stages over the simulated fleet: every step ends, bytes are those of the plan, memory is kept, no bound is beaten.
#include "cleave/sched/stage_scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

TEST(StageScheduler, RunsEveryStepWithinItsMemoryAndAboveItsBounds) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const model::StepGraph graph = graph_of(seed % 3 == 0   ? "gpt2"
                                            : seed % 3 == 1 ? "opt"
                                                            : "llama",
                                            3 + static_cast<std::int64_t>(seed));
    const auto devices = devices_of(8 + 5 * static_cast<std::int64_t>(seed), seed);
    fleet::ServerProfile server = kWide;
    if (seed % 2 == 1) server.nic_in = server.nic_out = BytesPerSecond(5e7);
    SimulatedFleet fleet(devices, server, DType::f16);
    StageScheduler scheduler(fleet, graph, {{server, 0}, DType::f16});
    const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
    const plan::ServerShare share = plan::server_share(graph, server);
    const Seconds bound = plan::stage_lower_bound(work, scheduler.plan(), devices, server, share);
    const Seconds floor = plan::floor_of(work, devices, server, share);
    Seconds first{0};
    for (int step = 0; step < 2; ++step) {
      const StepReport report = scheduler.run();
      EXPECT_GE(report.time.value(), bound.value()) << seed;
      EXPECT_GE(report.time.value(), floor.value()) << seed;
      EXPECT_GT(report.devices, 0);
      if (step == 0) first = report.time;
      EXPECT_NEAR(report.time.value(), first.value(), 1e-9) << "steps are alike";
    }
    Bytes down, up;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const Usage& usage = fleet.usage()[i];
      EXPECT_LE(usage.memory_peak.value(), devices[i].memory.value());
      down += usage.bytes_down;
      up += usage.bytes_up;
    }
    EXPECT_GT(down.value(), 0);
    EXPECT_GT(up.value(), 0);
  }
}

// One device has everything, so no row is sent that another's head has made: the narrower the way down, the nearer a
// step is to its bound.
TEST(StageScheduler, BehindANarrowWayDownNoStepBeatsItsBound) {
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    for (const DType wire : {DType::f32, DType::f16}) {
      const model::StepGraph graph =
          graph_of_shape({.family = family, .layers = 2, .width = 16, .vocabulary = 40, .freeze = {}}, 6);
      const auto devices = devices_of(1, 1, 1e9);
      fleet::ServerProfile server = kWide;
      server.nic_out = BytesPerSecond(1e5);
      SimulatedFleet fleet(devices, server, wire);
      StageScheduler scheduler(fleet, graph, {{server, 0}, wire});
      const Seconds bound = plan::stage_lower_bound(plan::stage_work_of(graph, wire), scheduler.plan(), devices, server,
                                                    plan::server_share(graph, server));
      EXPECT_GE(scheduler.run().time.value(), bound.value()) << family;
    }
  }
}

TEST(StageScheduler, CountsTheBytesThatLinksCarry) {
  const model::StepGraph graph = graph_of("opt", 6);
  const auto devices = devices_of(20, 7);
  SimulatedFleet fleet(devices, kWide, DType::f16);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  const StepReport report = scheduler.run();
  Bytes down, up;
  for (const Usage& usage : fleet.usage()) {
    down += usage.bytes_down;
    up += usage.bytes_up;
  }
  EXPECT_EQ(report.bytes_down.value(), down.value());
  EXPECT_EQ(report.bytes_up.value(), up.value());
  // The plan's forecast lets owners read everything; replicas that own slices read less.
  EXPECT_LE(static_cast<double>(down.value()), 1.1 * static_cast<double>(scheduler.plan().bytes_down.value()));
}

// What a link was taken for is what it carried, and a step lasts at least that long.
TEST(StageScheduler, TakesWhatItsLinksTake) {
  const model::StepGraph graph = graph_of("opt", 1, 1);
  auto devices = devices_of(6, 1, 1e9);
  for (fleet::DeviceProfile& device : devices) device.latency = Seconds(0);
  SimulatedFleet fleet(devices, kWide, DType::f16);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  const StepReport report = scheduler.run();
  double least = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Usage& usage = fleet.usage()[i];
    EXPECT_NEAR(usage.down.value(), (usage.bytes_down / devices[i].downlink).value(), 1e-9);
    EXPECT_NEAR(usage.up.value(), (usage.bytes_up / devices[i].uplink).value(), 1e-9);
    least = std::max({least, usage.down.value(), usage.up.value(), usage.compute.value()});
  }
  EXPECT_GE(report.time.value(), least);
}

// A sequence is summed where it ran: weights and boundaries are all that comes down, and partial sums go up.
TEST(StageScheduler, AReplicaThatOwnsTheWholeGradientIsSentNoOperands) {
  std::int64_t several = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const model::StepGraph graph = graph_of(seed % 2 == 0 ? "opt" : "llama", 9);
    const auto devices = devices_of(12, seed, 1e9);
    SimulatedFleet fleet(devices, kWide, DType::f16);
    const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
    const plan::StagePlan plan = owned_by_each_replica(graph, plan::plan_stages(work, devices, {kWide, 0}));
    StageScheduler scheduler(fleet, graph, plan, {{kWide, 0}, DType::f16});
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    Bytes down, sums;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const plan::StageCost cost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk);
      const std::int64_t replicas = std::ssize(plan.stages[s].replicas);
      several += replicas > 1 ? 1 : 0;
      down += cost.weights() * replicas + cost.taken_in(work.tokens());
      sums += Bytes(static_cast<std::int64_t>(cost.gradient_elements())) *
              (replicas * (replicas > 1 ? plan::sum_bytes(DType::f16) : size_of(DType::f16)));
    }
    const Bytes headers = plan::kMessageHeader * (4 * work.batch * std::ssize(plan.stages) * 4 + report.tasklets);
    EXPECT_GE(report.bytes_down.value(), down.value());
    EXPECT_LE(report.bytes_down.value(), (down + headers).value());
    EXPECT_GE(report.bytes_up.value(), sums.value());
  }
  EXPECT_GT(several, 0) << "no stage has several groups";
}

/// Counts what is submitted, by errand.
class CountingFleet final : public ForwardingFleet<> {
 public:
  explicit CountingFleet(Fleet& behind) : ForwardingFleet(behind) {}
  void submit(const Tasklet& tasklet) override {
    ++counts[tasklet.errand];
    ForwardingFleet::submit(tasklet);
  }
  std::map<Errand, std::int64_t> counts;
};

// Where devices hold the whole model and keep sequences, nothing is recomputed, whatever the stages and the chunks.
TEST(StageScheduler, KeptSequencesComeBackToWhereTheyWent) {
  const model::StepGraph graph = graph_of("gpt2", 7);
  auto devices = devices_of(3, 5, 1e9);
  for (fleet::DeviceProfile& device : devices) device.downlink = device.uplink = BytesPerSecond(1e9);
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  std::set<std::int64_t> chunks;
  for (const plan::StagePlan& plan : plan::stage_candidates(work, devices, {.server = kWide}, 64)) {
    if (plan.stages.front().replicas.front().kept_slots == 0) continue;
    chunks.insert((work.seq + plan.chunk - 1) / plan.chunk);
    SimulatedFleet simulated(devices, kWide, DType::f16);
    CountingFleet fleet(simulated);
    StageScheduler scheduler(fleet, graph, plan, {{kWide, 0}, DType::f16});
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    EXPECT_EQ(fleet.counts[Errand::recompute], 0) << plan.stages.size() << " stages, chunks of " << plan.chunk;
    EXPECT_GT(fleet.counts[Errand::backward], 0);
    const plan::ServerShare share = plan::server_share(graph, kWide);
    EXPECT_GE(report.time.value(), plan::stage_lower_bound(work, plan, devices, kWide, share).value());
    EXPECT_GE(report.time.value(), plan::floor_of(work, devices, kWide, share).value());
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value());
  }
  EXPECT_GE(chunks.size(), 2U) << "sequences in one chunk, and in several";
}

// Submits, by device and stage, chunks that go back and sums of what was run there.
class WaysBack final : public ForwardingFleet<Fleet> {
 public:
  explicit WaysBack(Fleet& fleet) : ForwardingFleet(fleet), fleet_(fleet) {}
  void submit(const Tasklet& tasklet) override {
    const std::pair at{tasklet.piece.device.value, tasklet.stage};
    if (tasklet.errand == Errand::backward) chunks[at].push_back(tasklet.item.sequence);
    if (tasklet.errand == Errand::sum && tasklet.run.down().value() == 0) sums[at].push_back(chunks[at].size());
    fleet_.submit(tasklet);
  }
  std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::int64_t>> chunks;  // sequences
  std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::size_t>> sums;     // chunks before each

 private:
  Fleet& fleet_;
};

// Operands of one sequence wait for sums at a time: all of its chunks, then its sums, before the next one's.
TEST(StageScheduler, SequencesGoBackThroughAReplicaOneAfterAnother) {
  std::size_t visits = 0, sums = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const model::StepGraph graph = graph_of("opt", 12);
    SimulatedFleet simulated(devices_of(14, seed), kWide, DType::f16);
    WaysBack fleet(simulated);
    StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
    const std::size_t chunks = static_cast<std::size_t>((384 + scheduler.plan().chunk - 1) / scheduler.plan().chunk);
    scheduler.run();
    for (const auto& [at, sequences] : fleet.chunks) {
      ASSERT_EQ(sequences.size() % chunks, 0U);
      for (std::size_t i = 0; i < sequences.size(); i += chunks) {
        ++visits;
        for (std::size_t c = 1; c < chunks; ++c) EXPECT_EQ(sequences[i + c], sequences[i]) << seed;
      }
    }
    for (const auto& [at, before] : fleet.sums) {
      if (!fleet.chunks.contains(at)) continue;  // of the head
      for (const std::size_t count : before) EXPECT_EQ(count % chunks, 0U) << seed;
      sums += before.size();
    }
  }
  EXPECT_GT(visits, 100U);
  EXPECT_GT(sums, 20U);
}

// Sequences that wait for their turn are not looked for among all of the batch: that took minutes here.
TEST(StageScheduler, ABatchMayHaveVeryManySequences) {
  constexpr std::int64_t kBatch = all_or_few(400'000, 20'000);
  const model::ModelConfig config = model::small_model("gpt2", 2, 64, 256, 16);
  const model::StepGraph graph = model::build_step(
      config,
      {.kind = model::StepKind::train, .batch = kBatch, .clip = true, .freeze = {}, .loss_rows = 0, .row_groups = 1});
  const auto devices = devices_of(8, 42, 2e7);
  SimulatedFleet fleet(devices, kWide, DType::f16);
  StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
  for (const plan::Stage& stage : scheduler.plan().stages) EXPECT_EQ(stage.kept_slots(), 0) << "they need not wait";
  scheduler.run();
  expect_all_done_once(scheduler, graph);
}

// A head that no device can hold goes in parts: everything is done once, memory is kept and the bound too, one or more
// replicas of a part, one or more groups of owners.
TEST(StageScheduler, RunsAHeadInParts) {
  const model::StepGraph graph = graph_of("opt", 6, 3, 20'000);
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  std::set<std::int64_t> parts;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const double memory = seed % 2 == 0 ? 4e6 : 3.2e6;
    auto devices = devices_of(40, seed, memory);
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(static_cast<std::int64_t>(memory));
    fleet::ServerProfile server = kWide;
    if (seed % 3 == 1) server.nic_in = server.nic_out = BytesPerSecond(5e7);
    SimulatedFleet fleet(devices, server, DType::f16);
    StageScheduler scheduler(fleet, graph, {{server, 0}, DType::f16});
    parts.insert(scheduler.plan().head_parts);
    const plan::ServerShare share = plan::server_share(graph, server);
    const Seconds bound = plan::stage_lower_bound(work, scheduler.plan(), devices, server, share);
    for (int step = 0; step < 2; ++step) {
      const StepReport report = scheduler.run();
      expect_all_done_once(scheduler, graph);
      EXPECT_GE(report.time.value(), bound.value()) << seed;
    }
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << seed;
  }
  EXPECT_FALSE(parts.contains(1));
  EXPECT_GE(parts.size(), 2U);
}

// Sequences that go to parts of the head, by stage and device.
class ToParts final : public ForwardingFleet<Fleet> {
 public:
  explicit ToParts(Fleet& fleet) : ForwardingFleet(fleet), fleet_(fleet) {}
  void submit(const Tasklet& tasklet) override {
    if (tasklet.errand == Errand::forward)
      sequences[{tasklet.stage, tasklet.piece.device.value}].insert(tasklet.item.sequence);
    fleet_.submit(tasklet);
  }
  std::map<std::pair<std::int32_t, std::int64_t>, std::set<std::int64_t>> sequences;

 private:
  Fleet& fleet_;
};

// A replica of a part with memory for many sequences is given no more than its uplink's share of them: others have a
// place again before it would be done.
TEST(StageScheduler, MemoryDoesNotDecideWhoTakesAPartOfTheHead) {
  constexpr std::int64_t kBatch = 24, kPlaces = 8;
  int looked_at = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const model::StepGraph graph = graph_of("opt", kBatch, 3, 20'000);
    auto devices = devices_of(60, seed, 4e6);
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(4'000'000);
    SimulatedFleet planned(devices, kWide, DType::f16);
    plan::StagePlan plan = StageScheduler(planned, graph, {{kWide, 0}, DType::f16}).plan();
    plan::Stage& part = plan.stages.back();
    if (plan.head_parts < 2 || part.replicas.size() < 2) continue;
    plan::StageReplica& roomy = part.replicas.front();
    for (std::size_t s = plan.stages.size() - static_cast<std::size_t>(plan.head_parts); s < plan.stages.size(); ++s) {
      for (const plan::StageReplica& replica : plan.stages[s].replicas) {
        BytesPerSecond& uplink = devices[static_cast<std::size_t>(replica.device.value)].uplink;
        uplink = uplink * 0.2;  // everything waits for the head
      }
    }
    double share = 0;
    for (const plan::StageReplica& replica : part.replicas)
      share += devices[static_cast<std::size_t>(replica.device.value)].uplink.value();
    share = devices[static_cast<std::size_t>(roomy.device.value)].uplink.value() / share;
    roomy.forward_slots = roomy.backward_slots = kPlaces;
    devices[static_cast<std::size_t>(roomy.device.value)].memory = Bytes(40'000'000);
    SimulatedFleet simulated(devices, kWide, DType::f16);
    ToParts fleet(simulated);
    StageScheduler scheduler(fleet, graph, plan, {{kWide, 0}, DType::f16});
    scheduler.run();
    expect_all_done_once(scheduler, graph);
    const auto stage = static_cast<std::int32_t>(plan.stages.size()) - 1;
    EXPECT_LE(static_cast<double>(fleet.sequences[{stage, roomy.device.value}].size()), share * kBatch + 2) << seed;
    ++looked_at;
  }
  EXPECT_GE(looked_at, 3);
}

// Where memory is short, devices with the slowest uplinks hold sums alone; the step is a step like any other.
TEST(StageScheduler, RunsWhereSomeDevicesHoldSumsAlone) {
  const model::StepGraph graph = graph_of("opt", 6);
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  std::int64_t ran = 0;
  for (double memory = 1e6; memory < 2e7; memory *= 1.06) {
    auto devices = devices_of(32, 3, memory);
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(static_cast<std::int64_t>(memory));
    const std::optional<plan::StagePlan> plan = plan::find_stages(work, devices, {kWide, 0});
    if (!plan) continue;
    std::set<std::int64_t> holds;
    for (const plan::Stage& stage : plan->stages) {
      for (const plan::StageReplica& replica : stage.replicas) holds.insert(replica.device.value);
    }
    if (std::ssize(holds) > 24) continue;
    ++ran;
    SimulatedFleet fleet(devices, kWide, DType::f16);
    StageScheduler scheduler(fleet, graph, *plan, {{kWide, 0}, DType::f16});
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    EXPECT_GE(report.time.value(),
              plan::stage_lower_bound(work, *plan, devices, kWide, plan::server_share(graph, kWide)).value());
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value());
  }
  EXPECT_GT(ran, 0) << "no memory left devices without a stage";
}

}  // namespace
}  // namespace cleave::sched
