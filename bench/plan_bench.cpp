// How long planning takes, on one core; every benchmark checks that its plan is whole, those of operations
// also that it is within its bound's reach.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "cleave/model/family.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace {

using namespace cleave;

std::vector<plan::DeviceState> edge_fleet(std::int64_t count) {
  const fleet::DeviceGroup edge{.name = "edge",
                                .count = count,
                                .compute_flops = {5e12, 7e12},
                                .memory_bytes = {1e9, 3e9},
                                .downlink_bytes = {10e6, 100e6},
                                .uplink_bytes = {5e6, 10e6},
                                .latency_s = {0, 0}};
  std::vector<plan::DeviceState> devices;
  for (const fleet::DeviceProfile& profile : fleet::draw_devices({edge}, 42)) devices.push_back({profile, {}, {}, {}});
  return devices;
}

bool whole(const plan::Work& work, const std::vector<plan::TaskletPlan>& tasklets, double volume) {
  double sum = 0;
  for (const plan::TaskletPlan& t : tasklets) {
    sum += work.kind == plan::WorkKind::gemm
               ? static_cast<double>(t.box.m() * t.box.n()) * static_cast<double>(t.box.k())
               : static_cast<double>(t.pairs.count());
  }
  return sum > volume * (1 - 1e-12) && sum < volume * (1 + 1e-12);
}

double volume_of(const plan::Work& work) {
  if (work.kind != plan::WorkKind::gemm) return static_cast<double>(work.attention.pairs());
  return static_cast<double>(work.gemm.m) * static_cast<double>(work.gemm.n) * static_cast<double>(work.gemm.k);
}

plan::Work gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  plan::Work work;
  work.gemm = {m, n, k};
  work.wire = DType::f16;
  return work;
}

void plan_gemm(benchmark::State& state, const plan::Work& work, plan::Objective objective) {
  const std::vector<plan::DeviceState> devices = edge_fleet(state.range(0));
  plan::OperationPlan plan;
  for (auto _ : state) {
    plan = plan::plan_operation(work, devices, {.objective = objective, .server = {}});
    benchmark::DoNotOptimize(plan);
  }
  if (!whole(work, plan.tasklets, volume_of(work))) state.SkipWithError("the plan is not whole");
  if (plan.busy > plan.lower_bound * 1.25) state.SkipWithError("the plan is far from its bound");
  state.counters["busy/bound"] = plan.busy / plan.lower_bound;
}
BENCHMARK_CAPTURE(plan_gemm, forward, gemm(131072, 5120, 5120), plan::Objective::step)
    ->RangeMultiplier(4)
    ->Range(64, 4096);
BENCHMARK_CAPTURE(plan_gemm, weight_gradient, gemm(5120, 20480, 131072), plan::Objective::step)
    ->RangeMultiplier(4)
    ->Range(64, 4096);
BENCHMARK_CAPTURE(plan_gemm, forward_alone, gemm(131072, 5120, 5120), plan::Objective::alone)->Arg(1024);
BENCHMARK_CAPTURE(plan_gemm, weight_gradient_alone, gemm(5120, 20480, 131072), plan::Objective::alone)->Arg(1024);

// All distinct operations of a Llama2-70B step, each planned once.
void plan_step(benchmark::State& state) {
  const std::vector<plan::DeviceState> devices = edge_fleet(state.range(0));
  model::ModelConfig config = model::find_preset("llama2-70b").value();
  config.seq_len = 1024;
  model::StepOptions step;
  step.batch = 128;
  const model::StepGraph graph = model::build_step(config, step);
  std::vector<plan::Work> works;
  for (const model::Operation& op : graph.operations) {
    if (!model::runs_on_devices(op.kind)) continue;
    const plan::Work work = plan::work_of(op, DType::f16);
    if (std::find(works.begin(), works.end(), work) == works.end()) works.push_back(work);
  }
  for (auto _ : state) {
    for (const plan::Work& work : works) {
      const plan::OperationPlan plan = plan::plan_operation(work, devices, {});
      if (!whole(work, plan.tasklets, volume_of(work))) state.SkipWithError("a plan is not whole");
    }
  }
  state.counters["operations"] = static_cast<double>(works.size());
}
BENCHMARK(plan_step)->Arg(1024)->Arg(8192)->Unit(benchmark::kMillisecond);

// A step of OPT-13B in stages. A layout is whole where every stage has a replica, and every group of owners all of its
// stage's gradient.
void find_layout(benchmark::State& state, double interface) {
  plan::StageOptions options;
  options.server.nic_out = options.server.nic_in = BytesPerSecond(interface);
  model::ModelConfig config = model::find_preset("opt-13b").value();
  config.seq_len = 1024;
  model::StepOptions step;
  step.batch = 128;
  step.row_groups = 1;
  const plan::StageWork work = plan::stage_work_of(model::build_step(config, step), DType::f16);
  std::vector<fleet::DeviceProfile> devices;
  for (const plan::DeviceState& of : edge_fleet(state.range(0))) devices.push_back(of.profile);
  std::optional<plan::StagePlan> plan;
  for (auto _ : state) {
    plan = plan::find_stages(work, devices, options);
    benchmark::DoNotOptimize(plan);
  }
  if (!plan) return state.SkipWithError("no layout");
  std::int64_t units = 0, wanted = 0;
  for (std::size_t s = 0; s < plan->stages.size(); ++s) {
    if (plan->stages[s].replicas.empty()) return state.SkipWithError("a stage without replicas");
    for (std::int64_t i = plan->stages[s].first; i < plan->stages[s].end; ++i)
      wanted += plan->groups[s] * work.pieces[static_cast<std::size_t>(i)].units;
  }
  for (const plan::GradientOwner& owner : plan->owners) {
    for (const plan::PieceSlice& slice : owner.slices) units += slice.end - slice.begin;
  }
  if (units != wanted) state.SkipWithError("a gradient is not whole");
  state.counters["stages"] = static_cast<double>(plan->stages.size());
}
void find_stages(benchmark::State& state) { find_layout(state, std::numeric_limits<double>::infinity()); }
BENCHMARK(find_stages)->Arg(64)->Arg(256)->Arg(1024)->Arg(8192)->Unit(benchmark::kMillisecond);

// Devices; Gbit/s of the server's interface, which is worth fewer of them.
void find_stages_behind(benchmark::State& state) { find_layout(state, static_cast<double>(state.range(1)) * 1e9 / 8); }
BENCHMARK(find_stages_behind)->ArgsProduct({{256, 1024, 8192}, {100, 10}})->Unit(benchmark::kMillisecond);

void replan_losses(benchmark::State& state) {
  const plan::Work work = gemm(131072, 5120, 5120);
  std::vector<plan::DeviceState> devices = edge_fleet(256);
  const plan::OperationPlan plan = plan::plan_operation(work, devices, {});
  std::vector<plan::TaskletPlan> lost;
  double volume = 0;
  std::erase_if(devices, [&](const plan::DeviceState& d) { return d.profile.id.value < state.range(0); });
  for (const plan::TaskletPlan& t : plan.tasklets) {
    if (t.device.value >= state.range(0)) continue;
    lost.push_back(t);
    volume += static_cast<double>(t.box.m() * t.box.n()) * static_cast<double>(t.box.k());
  }
  std::vector<plan::TaskletPlan> again;
  for (auto _ : state) {
    again = plan::replan(work, lost, devices, {});
    benchmark::DoNotOptimize(again);
  }
  if (!whole(work, again, volume)) state.SkipWithError("not everything was planned again");
}
BENCHMARK(replan_losses)->Arg(1)->Arg(3)->Arg(5)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
