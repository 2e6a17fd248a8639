// Devices that are slower than they declared, that come late, and that keep failing.
#include "asked_often.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

SchedulerOptions options_that(bool learn = true, bool copies = true) {
  return {.plan = {.server = wide_server()}, .wire = DType::f32, .learn = learn, .copies = copies};
}

model::StepGraph chain_of_products(std::int64_t length) {
  std::vector<model::Operation> all;
  for (std::int64_t id = 0; id < length; ++id) {
    const std::vector<std::int64_t> after = id > 0 ? std::vector{id - 1} : std::vector<std::int64_t>{};
    all.push_back(gemm(id, {4000, 3000 + 500 * (id % 3), 2000}, after));
  }
  return graph_of(std::move(all));
}

// Every fifth device runs at a tenth of what it declares.
fleet::ChurnTrace a_fifth_slow(std::int64_t devices) {
  fleet::ChurnTrace trace;
  for (std::int64_t d = 0; d < devices; d += 5) trace.push_back({Seconds(0), DeviceId(d), fleet::ChurnKind::slow, 0.1});
  return trace;
}

std::vector<double> step_times(SimulatedFleet& fleet, const model::StepGraph& graph, int steps,
                               const SchedulerOptions& options) {
  Scheduler scheduler(fleet, options);
  std::vector<double> times;
  for (int s = 0; s < steps; ++s) {
    Book book(graph);
    WatchedFleet watched(fleet, book);
    times.push_back(scheduler.run(graph).time.value());
  }
  return times;
}

TEST(Stragglers, UnannouncedOnesAreSoonPlannedAsIfTheyHadTold) {
  const model::StepGraph graph = chain_of_products(12);
  const std::vector<fleet::DeviceProfile> declared = edge_devices(60, {0.005, 0.02});
  std::vector<fleet::DeviceProfile> known = declared;
  for (std::size_t d = 0; d < known.size(); d += 5) {
    known[d].compute = known[d].compute * 0.1;
    known[d].downlink = known[d].downlink * 0.1;
    known[d].uplink = known[d].uplink * 0.1;
  }
  SimulatedFleet informed(known, wide_server(), DType::f32);
  SimulatedFleet deceived(declared, wide_server(), DType::f32, a_fifth_slow(60));
  SimulatedFleet never_learning(declared, wide_server(), DType::f32, a_fifth_slow(60));
  const double best = step_times(informed, graph, 1, options_that()).back();
  const std::vector<double> times = step_times(deceived, graph, 5, options_that());
  EXPECT_GT(step_times(never_learning, graph, 4, options_that(false, false)).back(), 3 * best);
  EXPECT_LE(times[3], 1.1 * best) << "the fourth step, after three";
  EXPECT_LE(times[4], 1.1 * best);
}

// A step that takes many times as long as was thought is not spent on deadlines.
TEST(Stragglers, StepsThatTakeForeverEndAllTheSame) {
  const model::StepGraph graph = chain_of_products(12);
  for (const bool jitters : {false, true}) {
    std::vector<fleet::DeviceProfile> devices = edge_devices(30, {0.005, 0.02});
    fleet::ChurnTrace churn;
    for (fleet::DeviceProfile& device : devices) {
      if (jitters) {
        device.jitter = Seconds(1e5);
      } else {
        churn.push_back({Seconds(0), device.id, fleet::ChurnKind::slow, 1e-9});
      }
    }
    SimulatedFleet behind(devices, wide_server(), DType::f32, churn);
    AskedOften fleet(behind);
    StepReport report;
    ASSERT_NO_THROW(report = Scheduler(fleet, options_that()).run(graph)) << jitters;
    EXPECT_GT(report.time.value(), 1e5) << jitters;
    EXPECT_LT(fleet.asked, 100'000) << jitters;
  }
}

// One operation, nothing learned yet: what the slow devices hold is asked of others, and the first answer counts.
TEST(Stragglers, LateBlocksAreAskedOfOthers) {
  const model::StepGraph graph = chain_of_products(1);
  const std::vector<fleet::DeviceProfile> devices = edge_devices(60, {0.005, 0.02});
  SimulatedFleet quiet(devices, wide_server(), DType::f32);
  SimulatedFleet with(devices, wide_server(), DType::f32, a_fifth_slow(60));
  SimulatedFleet without(devices, wide_server(), DType::f32, a_fifth_slow(60));
  const Seconds undisturbed = Scheduler(quiet, options_that()).run(graph).time;
  Book book(graph);
  WatchedFleet watched(with, book);
  const StepReport report = Scheduler(watched, options_that(false)).run(graph);
  book.expect_complete();
  EXPECT_GE(report.copies, 6);  // some slow devices were given nothing
  EXPECT_LT(report.time.value(), 6 * undisturbed.value());
  EXPECT_GT(Scheduler(without, options_that(false, false)).run(graph).time.value(), 8 * undisturbed.value());
}

// One block that everybody is late with is under way to three devices at once, and to no more.
TEST(Stragglers, ABlockIsAskedOfThreeDevicesAtMost) {
  std::vector<fleet::DeviceProfile> devices;
  fleet::ChurnTrace churn;
  for (std::int64_t id = 0; id < 8; ++id) {
    devices.push_back(device(id, 1e9, 1e6, 1e6));
    churn.push_back({Seconds(0), DeviceId(id), fleet::ChurnKind::slow, 1e-3});
  }
  SimulatedFleet fleet(devices, wide_server(), DType::f32, churn);
  const StepReport report = Scheduler(fleet, options_that(false)).run(graph_of({attention(0, {1, 32, 1, 1, 8})}));
  EXPECT_EQ(report.copies, 2);
}

TEST(Stragglers, APunctualFleetIsAskedOnce) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const model::StepGraph graph = random_graph(30, seed);
    fleet::ServerProfile server = wide_server();
    if (seed % 2 == 0) server.nic_out = server.nic_in = BytesPerSecond(5e7);
    SimulatedFleet fleet(mixed_devices(9, seed), server, DType::f32);
    SchedulerOptions options = options_that();
    options.plan.server = server;
    Scheduler scheduler(fleet, options);
    for (int step = 0; step < 3; ++step) EXPECT_EQ(scheduler.run(graph).copies, 0) << "seed " << seed;
  }
}

/// Never tells of one answer of the operation `of`, and notes when a block of it is asked for again.
class OneAnswerGoesAstray final : public ForwardingFleet<> {
 public:
  OneAnswerGoesAstray(Fleet& fleet, OpId of) : ForwardingFleet(fleet), of_(of) {}
  void submit(const Tasklet& tasklet) override {
    if (tasklet.op == of_) {
      ids_.insert(tasklet.id);
      if (astray_ && !again) again = now();
    }
    ForwardingFleet::submit(tasklet);
  }
  Event next_event(Seconds deadline) override {
    const Event event = ForwardingFleet::next_event(deadline);
    if (event.kind != EventKind::done || astray_ || !ids_.contains(event.tasklet)) return event;
    astray_ = true;
    return next_event(deadline);
  }
  std::optional<Seconds> again;

 private:
  OpId of_;
  std::set<TaskletId> ids_;
  bool astray_ = false;
};

// A device is not excused by answers to what gives way to the block that it owes.
TEST(Stragglers, WorkThatGivesWayDelaysNoCopy) {
  std::vector<model::Operation> all{gemm(0, {400, 300, 1000}, {})};
  for (std::int64_t id = 1; id <= 200; ++id)
    all.push_back(gemm(id, {400, 300, 1000}, {}, model::Phase::weight_gradient));
  const model::StepGraph graph = graph_of(std::move(all));
  SimulatedFleet quiet(edge_devices(4, {0.005, 0.02}), wide_server(), DType::f32);
  OneAnswerGoesAstray fleet(quiet, OpId(0));
  Scheduler scheduler(fleet, options_that());
  const StepReport report = scheduler.run(graph);
  ASSERT_TRUE(fleet.again.has_value());
  EXPECT_GE(report.copies, 1);
  EXPECT_LT(fleet.again->value(), 0.5 * report.time.value()) << "not when nothing else is left to do";
}

TEST(Stragglers, WhatIsLearnedStaysWithinTheStepsOfATrace) {
  const model::StepGraph graph = chain_of_products(6);
  const std::vector<fleet::DeviceProfile> devices = edge_devices(20, {0.005, 0.02});
  SimulatedFleet quiet(devices, wide_server(), DType::f32);
  const double best = step_times(quiet, graph, 1, options_that()).back();
  // All of them slow down for a while, and recover.
  fleet::ChurnTrace trace;
  for (std::int64_t d = 0; d < 5; ++d) trace.push_back({Seconds(0), DeviceId(d), fleet::ChurnKind::slow, 0.2});
  for (std::int64_t d = 0; d < 5; ++d) trace.push_back({Seconds(4 * best), DeviceId(d), fleet::ChurnKind::slow, 1});
  SimulatedFleet fleet(devices, wide_server(), DType::f32, trace);
  const std::vector<double> times = step_times(fleet, graph, 10, options_that());
  EXPECT_LE(times.back(), 1.02 * best);
}

// A device that takes work and leaves with it, over and over.
TEST(Stragglers, OneThatKeepsFailingIsLeftOutForAWhile) {
  const model::StepGraph graph = chain_of_products(1);
  const std::vector<fleet::DeviceProfile> devices = edge_devices(10, {0.005, 0.02});
  SimulatedFleet quiet(devices, wide_server(), DType::f32);
  const Seconds one = Scheduler(quiet, options_that()).run(graph).time;
  fleet::ChurnTrace trace;
  for (int i = 0; i < 200; ++i) {
    trace.push_back({one * (0.5 + i), DeviceId(0), fleet::ChurnKind::leave, 1});
    trace.push_back({one * (0.6 + i), DeviceId(0), fleet::ChurnKind::join, 1});
  }
  SimulatedFleet fleet(devices, wide_server(), DType::f32, trace);
  Scheduler scheduler(fleet, options_that());
  std::int64_t lost = 0;
  bool was_left_out = false;
  const Seconds end = one * 12;
  while (fleet.now() < end) {
    const StepReport report = scheduler.run(graph);
    lost += report.lost;
    for (const Loss& loss : report.losses) {
      EXPECT_GE(loss.added.value(), 0);
      EXPECT_GT(loss.recomputing.value(), 0);
    }
    was_left_out = was_left_out || scheduler.leaves_out(DeviceId(0));
  }
  EXPECT_TRUE(was_left_out);
  EXPECT_LE(lost, 4);
}

}  // namespace
}  // namespace cleave::sched
