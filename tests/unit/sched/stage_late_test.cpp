// Steps in stages on devices that turn out far slower than they declare: others do what they had, everything is done
// once, and nothing changes where nobody is slow.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "asked_often.hpp"
#include "cleave/base/error.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"
#include "stages/stage_run.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

constexpr double kAsBelieved = 1 + 1e-9;

// A small model on forty devices, and how long a step takes where nothing happens.
struct OnForty {
  OnForty(std::uint64_t seed, double rate) : devices(devices_of(40, seed, rate)) {
    SimulatedFleet calm(devices, kWide, DType::f16);
    step = StageScheduler(calm, graph, options).run().time;
  }
  model::StepGraph graph = graph_of("opt", 8, 4);
  StageSchedulerOptions options{{kWide, 0}, DType::f16};
  std::vector<fleet::DeviceProfile> devices;
  Seconds step;
};

// Of fleets that do as they declare, by links, processors, latency, jitter and whatever waits at the server.
TEST(StageLate, NobodyIsLateWhoDoesAsIsBelieved) {
  for (std::uint64_t seed = 0; seed < all_or_few(40U, 9U); ++seed) {
    const model::StepGraph graph = graph_of(seed % 2 == 0 ? "opt" : "llama", 8, 4);
    auto devices = devices_of(12 + static_cast<std::int64_t>(seed % 30), seed, seed % 3 == 0 ? 2e7 : 1e7);
    for (fleet::DeviceProfile& device : devices) {
      if (seed % 4 == 1) device.jitter = Seconds(0.02);
      if (seed % 5 == 2) device.compute = FlopsPerSecond(device.compute.value() / 20);
    }
    fleet::ServerProfile server = kWide;
    if (seed % 3 == 1) server.nic_out = BytesPerSecond(1e7 * static_cast<double>(1 + seed % 5));
    if (seed % 3 == 2) server.nic_in = BytesPerSecond(2e6 * static_cast<double>(1 + seed % 5));
    const StageSchedulerOptions options{{server, 0}, DType::f16};
    SimulatedFleet fleet(devices, server, DType::f16, {}, seed);
    const plan::StagePlan plan = plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, options.stages);
    stages::StageRun run(fleet, graph, plan, options);
    run.run({});
    EXPECT_EQ(run.report.late, 0) << seed;
    EXPECT_LE(run.late_devices.worst(), kAsBelieved) << seed;
    if (seed % 3 == 0) { EXPECT_GT(run.late_devices.worst(), 0.1) << seed << ": nobody was watched"; }
    EXPECT_EQ(run.progress.undisturbed(), nullptr) << "something was looked into";

    StageSchedulerOptions unwatched = options;
    unwatched.watch = false;
    SimulatedFleet same(devices, server, DType::f16, {}, seed);
    EXPECT_EQ(StageScheduler(same, graph, plan, unwatched).run().time, fleet.now()) << seed;
  }
}

// Devices that come and go, stand-ins and what is read again: still nobody is late.
TEST(StageLate, NobodyIsLateWhereDevicesComeAndGo) {
  constexpr int kSeeds = all_or_few(12, 2);
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto [graph, options, devices, step] = OnForty(seed, 2e7);
    SimulatedFleet fleet(devices, kWide, DType::f16, sessions_of(devices, seed, step, 4, seed % 2 == 0 ? 0.05 : 1.0));
    stages::StageRun run(fleet, graph,
                         plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, options.stages), options);
    for (int k = 0; k < 3; ++k) {
      run.run({});
      lost += run.report.lost;
      EXPECT_EQ(run.report.late, 0) << seed;
      EXPECT_LE(run.late_devices.worst(), kAsBelieved) << seed;
      for (const auto& [load, id] : run.loads) {
        if (run.book(id).present) fleet.release(load, DeviceId(id));
      }
    }
  }
  EXPECT_GT(lost, kSeeds) << "hardly anything was lost";
}

/// Knows what devices were sent to keep, until they are told to give it up or have left.
class Keeps final : public ForwardingFleet<> {
 public:
  using ForwardingFleet::ForwardingFleet;
  void submit(const Tasklet& tasklet) override {
    if (tasklet.stays_on_device()) kept[tasklet.id] = tasklet.piece.device;
    ForwardingFleet::submit(tasklet);
  }
  void release(TaskletId columns, DeviceId device) override {
    kept.erase(columns);
    ForwardingFleet::release(columns, device);
  }
  Event next_event(Seconds deadline) override {
    const Event event = ForwardingFleet::next_event(deadline);
    if (event.kind == EventKind::left) std::erase_if(kept, [&](const auto& of) { return of.second == event.device; });
    return event;
  }

  std::map<TaskletId, DeviceId> kept;
};

// Devices keep what the step believes that they keep: one whose work is given to others is told to give up its weights,
// which would take its memory from then on.
TEST(StageLate, WhoIsGivenUpKeepsNothing) {
  std::int64_t late = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto [graph, options, devices, step] = OnForty(seed, 1e7);
    fleet::ChurnTrace churn;
    for (const std::int64_t id : {3, 17, 29}) churn.push_back({step * 0.2, DeviceId(id), fleet::ChurnKind::slow, 0.01});
    churn.push_back({step * 0.5, DeviceId(8), fleet::ChurnKind::leave, 1});
    SimulatedFleet behind(devices, kWide, DType::f16, churn);
    Keeps fleet(behind);
    stages::StageRun run(fleet, graph,
                         plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, options.stages), options);
    run.run({});
    late += run.report.late;
    std::map<TaskletId, DeviceId> believed;
    for (const auto& [load, id] : run.loads) believed[load] = DeviceId(id);
    EXPECT_EQ(fleet.kept, believed) << seed;
  }
  EXPECT_GT(late, 3) << "hardly anybody was given up";
}

// A few of 40 do a twentieth of what they declare, or next to nothing, from some moment on.
TEST(StageLate, WhatSlowDevicesHaveOthersDo) {
  constexpr int kSeeds = all_or_few(60, 7);
  std::int64_t late = 0, runs = 0;
  double with = 0, without = 0, longer = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    auto [graph, options, devices, step] = OnForty(seed, seed % 2 == 0 ? 2e7 : 1e7);
    fleet::ChurnTrace churn;
    const Seconds at = step * (0.2 * static_cast<double>(seed % 5));
    for (std::uint64_t i = 0; i < 1 + seed % 6; ++i)
      churn.push_back({at, DeviceId(static_cast<std::int64_t>(random() % 40)), fleet::ChurnKind::slow,
                       seed % 3 == 0 ? 1e-5 : 0.05});
    std::vector<double> times;
    for (int again = 0; again < 2; ++again) {
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, options);
      const StepReport report = scheduler.run();
      expect_all_done_once(scheduler, graph);
      times.push_back(report.time.value());
      EXPECT_EQ(report.time, fleet.now());
      if (again > 0) continue;
      late += report.late;
      ++runs;
      // Panels are large here, and one is waited for, a good part of a step twenty times over.
      EXPECT_LT(report.time, step * 1.5 + Seconds(3.6)) << seed;
      longer += report.time / step;
      scheduler.run();
      expect_all_done_once(scheduler, graph);
      for (std::size_t i = 0; i < devices.size(); ++i)
        EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << seed << ' ' << i;
    }
    EXPECT_EQ(times[0], times[1]) << seed;
    options.watch = false;
    if (seed % 3 == 0) continue;  // they would take days
    SimulatedFleet waits(devices, kWide, DType::f16, churn);
    without += StageScheduler(waits, graph, options).run().time / step;
    with += times[0] / step.value();
  }
  EXPECT_GT(late, kSeeds);
  EXPECT_LT(longer, 2.5 * static_cast<double>(runs));
  EXPECT_LT(with, 0.5 * without);
}

// A model whose weights take several panels, on forty devices of which a fifth does a tenth of what it declares.
struct AFifthSlow {
  explicit AFifthSlow(std::uint64_t seed) : devices(devices_of(40, seed, 1e8)), told(devices) {
    for (std::size_t d = 0; d < devices.size(); d += 5) {
      churn.push_back({Seconds(0), devices[d].id, fleet::ChurnKind::slow, 0.1});
      told[d].compute = told[d].compute * 0.1;
      told[d].downlink = told[d].downlink * 0.1;
      told[d].uplink = told[d].uplink * 0.1;
    }
  }
  model::StepGraph graph = graph_of_shape({.layers = 4, .width = 1024}, 32);
  StageSchedulerOptions options{{kWide, 0}, DType::f16};
  std::vector<fleet::DeviceProfile> devices, told;
  fleet::ChurnTrace churn;
};

// Weights are not answered, and the step does not wait for a replica that has nothing else: it keeps them. What its
// link did in that time is known all the same: the next step is planned for it, and nothing comes before its weights
// are there.
TEST(StageLate, WhoOnlyTookInWeightsIsBelievedToBeSlow) {
  std::int64_t kept = 0;
  constexpr std::uint64_t kFleets[] = {1, 7, 10};  // some of whose replicas have nothing else so early
  for (std::int32_t i = 0; i < 120; ++i) {
    const std::int32_t d = i % 40;
    const AFifthSlow of(kFleets[i / 40]);
    const DeviceId slow(d);
    SimulatedFleet fleet(of.devices, kWide, DType::f16, {{Seconds(0), slow, fleet::ChurnKind::slow, 0.1}});
    stages::StageRun run(fleet, of.graph,
                         plan::plan_stages(plan::stage_work_of(of.graph, DType::f16), of.devices, of.options.stages),
                         of.options);
    run.begin();
    while (!run.complete() && run.late_devices.slowed().empty() && run.late_devices.dismissed().empty() &&
           !run.book(d).contributed) {
      const Event event = fleet.next_event(std::max(run.late_devices.next_look(), fleet.now()));
      if (event.kind != EventKind::timeout) {
        run.handle(event);
        if (run.may_update()) run.server->release_updates();
      }
      if (fleet.now() >= run.late_devices.next_look()) run.late_devices.look();
    }
    if (!run.late_devices.slowed().contains(d) || run.book(d).contributed) continue;
    ++kept;
    for (const stages::StageState& stage : run.stage) {
      const auto host = std::ranges::find(stage.replicas, d, &stages::ActiveReplica::device);
      if (host == stage.replicas.end()) continue;
      EXPECT_GT(host->ready.value(),
                3 * (stage.cost.weights() / of.devices[static_cast<std::size_t>(d)].downlink).value())
          << d;
    }
    run.rates.renew(true);
    const std::vector<fleet::DeviceProfile> believed = run.found_profiles();
    const fleet::DeviceProfile& declared = of.devices[static_cast<std::size_t>(d)];
    EXPECT_LT(believed[static_cast<std::size_t>(d)].downlink.value(), declared.downlink.value() / 3) << d;
    EXPECT_LT(believed[static_cast<std::size_t>(d)].uplink.value(), declared.uplink.value() / 3) << d;
  }
  EXPECT_GT(kept, 3) << "every slow device held up its step";
}

// After one step the next one is planned for what they do: all but as if they had told. Which of two layouts with much
// the same forecast is taken turns on the last digits of the rates, and they differ by a tenth, so steps are compared
// over all fleets.
TEST(StageLate, SlowDevicesAreSoonPlannedAsIfTheyHadTold) {
  std::vector<double> took(4, 0), longest(4, 0);  // of each step
  double known = 0, longest_known = 0;            // by a planner that knew
  std::int64_t late = 0;                          // that were found out in first steps
  constexpr int kSeeds = all_or_few(60, 6);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    AFifthSlow of(seed);
    of.options.server_sums = ServerSums::never;  // it would make too much of what they are late with
    SimulatedFleet informed(of.told, kWide, DType::f16), deceived(of.devices, kWide, DType::f16, of.churn);
    const double time = StageScheduler(informed, of.graph, of.options).run().time.value();
    known += time;
    longest_known = std::max(longest_known, time);
    StageScheduler scheduler(deceived, of.graph, of.options);
    for (std::size_t step = 0; step < took.size(); ++step) {
      const StepReport report = scheduler.run();
      const double its = report.time.value();
      if (step == 0) late += report.late;
      took[step] += its;
      longest[step] = std::max(longest[step], its);
    }
  }
  EXPECT_GT(took[0], 1.05 * known) << "nobody was missed: nothing to learn";
  EXPECT_GT(late, 5 * kSeeds) << "hardly anybody was found out";
  for (const std::size_t step : {1, 2, 3}) {
    EXPECT_LT(took[step], 1.02 * known) << step;
    EXPECT_LT(longest[step], 1.25 * longest_known) << step;
  }
}

// Small fleets in which nobody has room for what a slow device had: it keeps it, or gets it back.
TEST(StageLate, WhereNobodyHasRoomTheStepEndsAllTheSame) {
  constexpr int kSeeds = all_or_few(80, 12);
  std::int64_t done = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::mt19937_64 random(seed);
    const model::StepGraph graph = graph_of("opt", 4, 4);
    auto devices = devices_of(8 + static_cast<std::int64_t>(seed % 6), seed);
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(6'000'000);
    std::optional<plan::StagePlan> plan =
        plan::find_stages(plan::stage_work_of(graph, DType::f16), devices, plan::StageOptions{kWide, 0});
    if (!plan) continue;
    fleet::ChurnTrace churn;
    for (std::uint64_t i = 0; i < 1 + seed % 3; ++i)
      churn.push_back({Seconds(0.1 * static_cast<double>(seed % 7)),
                       DeviceId(static_cast<std::int64_t>(random() % devices.size())), fleet::ChurnKind::slow, 0.03});
    std::ranges::stable_sort(churn, {}, [](const fleet::ChurnEvent& event) { return event.at.value(); });
    SimulatedFleet fleet(devices, kWide, DType::f16, churn);
    StageScheduler scheduler(fleet, graph, *plan, {{kWide, 0}, DType::f16});
    for (int step = 0; step < 3; ++step) {
      ASSERT_NO_THROW(scheduler.run()) << seed;
      expect_all_done_once(scheduler, graph);
    }
    ++done;
  }
  EXPECT_GT(8 * done, 3 * kSeeds);
}

// A step whose messages take many times as long as all of it was thought to is not spent on looks, and nobody is
// silent.
TEST(StageLate, MessagesThatTakeForeverComeAllTheSame) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  std::vector<fleet::DeviceProfile> devices = devices_of(20, 3, 2e7);
  for (const bool jitters : {false, true}) {
    for (fleet::DeviceProfile& device : devices) (jitters ? device.jitter : device.latency) = Seconds(1e5);
    SimulatedFleet behind(devices, kWide, DType::f16);
    AskedOften fleet(behind);
    StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
    StepReport report;
    ASSERT_NO_THROW(report = scheduler.run()) << jitters;
    EXPECT_EQ(report.lost + report.late, 0) << jitters;
    EXPECT_GT(report.time.value(), 1e5) << jitters;
    EXPECT_LT(fleet.asked, 100'000) << jitters;
    expect_all_done_once(scheduler, graph);
  }
}

// A slow device that leaves, or comes back, after others have taken over what it had.
TEST(StageLate, SlowDevicesMayLeaveAndComeBack) {
  constexpr int kSeeds = all_or_few(30, 4);
  std::int64_t late = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto [graph, options, devices, whole] = OnForty(seed, 2e7);
    const Seconds step = whole;  // which a lambda may capture
    std::mt19937_64 random(seed);
    fleet::ChurnTrace churn;
    for (int i = 0; i < 4; ++i) {
      const DeviceId who(static_cast<std::int64_t>(random() % 40));
      const auto at = [&](double share) { return step * (share + 0.1 * static_cast<double>(i)); };
      churn.push_back({at(0.1), who, fleet::ChurnKind::slow, 0.05});
      churn.push_back({at(0.5), who, fleet::ChurnKind::leave, 1.0});
      churn.push_back({at(0.7), who, fleet::ChurnKind::join, 1.0});
      churn.push_back({at(1.1), who, fleet::ChurnKind::slow, 1.0});
    }
    std::ranges::stable_sort(churn, {}, [](const fleet::ChurnEvent& event) { return event.at.value(); });
    SimulatedFleet fleet(devices, kWide, DType::f16, churn);
    StageScheduler scheduler(fleet, graph, options);
    for (int k = 0; k < 4; ++k) {
      late += scheduler.run().late;
      expect_all_done_once(scheduler, graph);
    }
  }
  EXPECT_GT(late, kSeeds);
}

}  // namespace
}  // namespace cleave::sched
