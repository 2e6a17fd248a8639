// Row groups that follow each other through partitions: every block once, within memory, with fewer bytes, never below
// the bound, whatever happens to the devices.
#include <algorithm>

#include "cleave/model/family.hpp"
#include "cleave/sched/step_spec.hpp"
#include "fibre_group.hpp"
#include "graphs.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

SchedulerOptions keeping(plan::KeepColumns keep) {
  return {.plan = {.server = wide_server(), .keep_columns = keep}, .wire = DType::f16, .copies = false};
}

// `layers` layers of two products each, one wide and one deep, cut into groups of `rows` rows.
model::StepGraph layers_of(std::int64_t layers, std::int64_t groups, std::int64_t rows) {
  model::StepGraph graph;
  for (std::int64_t t = 0; t < 2 * layers; ++t) {
    model::TensorSpec& weights = graph.tensors.emplace_back();
    weights.id = TensorId(t);
    weights.role = model::TensorRole::parameter;
  }
  for (std::int64_t product = 0; product < 2 * layers; ++product) {
    const bool wide = product % 2 == 0;
    const OpId first(std::ssize(graph.operations));
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t id = std::ssize(graph.operations);
      const std::vector<std::int64_t> after =
          product == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{id - groups};
      model::Operation op = gemm(id, wide ? GemmShape{rows, 4096, 1024} : GemmShape{rows, 1024, 4096}, after);
      op.type = wide ? "wide" : "deep";
      op.in = {{}, {TensorId(product), 0, op.gemm.k, 0, op.gemm.n}};
      op.rows = {first, group, groups};
      graph.operations.push_back(op);
    }
  }
  return graph;
}

struct Ran {
  StepReport report;
  bool within_memory = true;
};

Ran run(const model::StepGraph& graph, plan::KeepColumns keep, fleet::ChurnTrace churn = {}) {
  const std::vector<fleet::DeviceProfile> devices = edge_devices(32, {0, 0});
  SimulatedFleet simulated(devices, wide_server(), DType::f16, std::move(churn));
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  Ran ran{.report = Scheduler(fleet, keeping(keep)).run(graph)};
  book.expect_complete();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    ran.within_memory = ran.within_memory && simulated.usage()[i].memory_peak <= devices[i].memory;
  }
  return ran;
}

TEST(DevicePartitions, KeptColumnsMoveFewerBytesInLessTime) {
  const model::StepGraph graph = layers_of(12, 6, 4096);
  const Ran kept = run(graph, plan::KeepColumns::where_quicker), sent = run(graph, plan::KeepColumns::never);
  EXPECT_TRUE(kept.within_memory);
  EXPECT_LT(kept.report.bytes_down.value(), 0.75 * static_cast<double>(sent.report.bytes_down.value()));
  EXPECT_LT(kept.report.time.value(), 0.95 * sent.report.time.value());
}

TEST(DevicePartitions, NobodyKeepsColumnsWhereItIsNotQuicker) {
  const model::StepGraph graph = layers_of(2, 2, 256);
  EXPECT_EQ(run(graph, plan::KeepColumns::where_quicker).report.time, run(graph, plan::KeepColumns::never).report.time);
}

TEST(DevicePartitions, NoRunBeatsTheBound) {
  for (const std::int64_t groups : {2, 5, 12}) {
    const model::StepGraph graph = layers_of(5, groups, 2048);
    std::vector<plan::DeviceState> states;
    for (const fleet::DeviceProfile& profile : edge_devices(32, {0, 0})) states.push_back({profile, {}, {}, {}});
    const Seconds bound = step_lower_bound(graph, states, keeping(plan::KeepColumns::always));
    EXPECT_GT(bound.value(), 0);
    EXPECT_GE(run(graph, plan::KeepColumns::always).report.time, bound);
    EXPECT_LE(bound, step_lower_bound(graph, states, keeping(plan::KeepColumns::never)));
  }
}

TEST(DevicePartitions, ColumnsThatAreLostComeAgain) {
  const model::StepGraph graph = layers_of(6, 4, 4096);
  const Seconds whole = run(graph, plan::KeepColumns::always).report.time;
  fleet::ChurnTrace churn;
  for (std::int64_t i = 0; i < 24; ++i) {
    const auto kind = i % 3 == 0   ? fleet::ChurnKind::leave
                      : i % 3 == 1 ? fleet::ChurnKind::hang
                                   : fleet::ChurnKind::join;
    churn.push_back({whole * (static_cast<double>(i) / 20), DeviceId(i / 3 + (i % 3 == 1 ? 8 : 0)), kind, 1.0});
  }
  const Ran disturbed = run(graph, plan::KeepColumns::always, churn);
  EXPECT_TRUE(disturbed.within_memory);
  EXPECT_GT(disturbed.report.lost, 0);
  EXPECT_GE(disturbed.report.redone, disturbed.report.lost / 2);
}

TEST(DevicePartitions, MoreDevicesDoNoHarmBehindAnInterfaceThatBinds) {
  const model::StepGraph graph = layers_of(12, 6, 4096);
  SchedulerOptions options = keeping(plan::KeepColumns::always);
  options.plan.server.nic_out = options.plan.server.nic_in = BytesPerSecond(5e8);
  const auto time_on = [&](std::int64_t count) {
    SimulatedFleet fleet(edge_devices(count, {0, 0}), options.plan.server, DType::f16);
    return Scheduler(fleet, options).run(graph).time;
  };
  const Seconds few = time_on(32), many = time_on(64);
  EXPECT_LT(many.value(), 1.02 * few.value());
}

// So little memory that the columns of two operations just find room: groups wait for each other, and come to an end.
TEST(DevicePartitions, NoGroupRunsAwayFromItsColumns) {
  constexpr Bytes kLittle(40 << 20);
  const model::StepGraph graph = layers_of(12, 8, 1024);
  std::vector<fleet::DeviceProfile> devices = edge_devices(32, {0, 0});
  for (fleet::DeviceProfile& device : devices) device.memory = kLittle;
  SimulatedFleet simulated(devices, wide_server(), DType::f16);
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  const StepReport little = Scheduler(fleet, keeping(plan::KeepColumns::always)).run(graph);
  book.expect_complete();
  for (const Usage& usage : simulated.usage()) EXPECT_LE(usage.memory_peak, kLittle);
  const Ran much = run(graph, plan::KeepColumns::always);
  EXPECT_LT(little.bytes_down.value(), 1.1 * static_cast<double>(much.report.bytes_down.value()));
}

// So few devices that a partition has none while one of them is away, and again has one when it is back.
TEST(DevicePartitions, PartitionsEndAndBeginWithinAStep) {
  const model::StepGraph graph = layers_of(6, 4, 2048);
  const auto run_on = [&](const fleet::ChurnTrace& churn) {
    SimulatedFleet simulated(edge_devices(2, {0, 0}), wide_server(), DType::f16, churn);
    Book book(graph);
    WatchedFleet fleet(simulated, book);
    const StepReport report = Scheduler(fleet, keeping(plan::KeepColumns::always)).run(graph);
    book.expect_complete();
    return report;
  };
  const Seconds whole = run_on({}).time;
  const StepReport disturbed = run_on({{whole * 0.2, DeviceId(1), fleet::ChurnKind::leave, 1.0},
                                       {whole * 0.4, DeviceId(1), fleet::ChurnKind::join, 1.0},
                                       {whole * 0.6, DeviceId(0), fleet::ChurnKind::leave, 1.0},
                                       {whole * 0.8, DeviceId(0), fleet::ChurnKind::join, 1.0}});
  EXPECT_GT(disturbed.lost, 0);
  EXPECT_GT(disturbed.time, whole);
}

// A fifth of the devices turns out slower, columns are planned anew in the middle of the step, and those of a later
// operation have the room that an earlier one waits for.
TEST(DevicePartitions, RoomThatIsTakenOutOfTurnHoldsUpNoStep) {
  StepSpec spec;
  spec.model = *model::find_preset("opt-30b");
  spec.model.n_layer = all_or_few(6, 2);
  spec.model.seq_len = 256;
  spec.batch = 16;
  spec.plan.keep_columns = plan::KeepColumns::always;
  spec.plan.server = {BytesPerSecond(1.25e9), BytesPerSecond(1.25e9), FlopsPerSecond(1e13), BytesPerSecond(1e11)};
  spec.devices =
      fleet::draw_devices({fibre_group(39, {0.7688e12, 0.7688e12}, {2633e6, 2633e6}, {166e6, 166e6}, 0.001)}, 800);
  fleet::ChurnModel slow;
  slow.slow_fraction = 0.2;
  slow.slow_factor = 0.1;
  slow.seed = 7;
  SimulatedFleet fleet(spec.devices, spec.server(), spec.wire, fleet::draw_churn(slow, 39, Seconds(1e6)));
  const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, 4));
  const StepReport report = Scheduler(fleet, scheduler_options(spec)).run(graph);
  EXPECT_EQ(report.operations.size(), graph.operations.size());
}

// Two steps of one graph: what the first one left on the devices does not reach the second.
TEST(DevicePartitions, EveryStepBeginsWithNothingKept) {
  const model::StepGraph graph = layers_of(4, 4, 2048);
  SimulatedFleet fleet(edge_devices(32, {0, 0}), wide_server(), DType::f16);
  Scheduler scheduler(fleet, keeping(plan::KeepColumns::always));
  const StepReport first = scheduler.run(graph), second = scheduler.run(graph);
  EXPECT_EQ(first.bytes_down, second.bytes_down);
  EXPECT_NEAR(first.time.value(), second.time.value(), 1e-9 * first.time.value());
}

}  // namespace
}  // namespace cleave::sched
