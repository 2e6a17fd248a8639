// plan_operation(): usable devices, the scheme, fitting, costs and totals.
#include "cleave/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bounds/cover_bound.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "finish_plan.hpp"
#include "fit.hpp"
#include "partition.hpp"
#include "search/slabs.hpp"

namespace cleave::plan {

namespace {

/// Plans of operations alone that are further from their lower bound by this factor are set beside a sharper one.
constexpr double kFarFromBound = 1.08;

/// More than a few devices are planned for again, for longer, where they are that far from the sharper bound, until
/// they are within the second factor. The first keeps every plan of bench/plan_table within 1.1.
constexpr double kWorthAgain = 1.095, kCloseToBound = 1.08;

/// A bound that was found on a sample of the devices may be so much earlier with all of them.
constexpr double kMargin = 1.01;

}  // namespace

Work work_of(const model::Operation& operation, DType wire) {
  CLEAVE_ASSERT(model::runs_on_devices(operation.kind), "{} does not run on devices", operation.name);
  Work work;
  work.wire = wire;
  if (operation.kind == model::OpKind::gemm) {
    work.gemm = operation.gemm;
    work.instances = operation.instances;
  } else {
    work.kind =
        operation.kind == model::OpKind::attention_forward ? WorkKind::attention_forward : WorkKind::attention_backward;
    work.attention = operation.attention;
  }
  return work;
}

TaskletPlan whole_of(const Work& work) {
  TaskletPlan piece;
  if (work.kind == WorkKind::gemm) {
    piece.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  } else {
    piece.pairs = {0, work.attention.pairs()};
  }
  return piece;
}

OperationPlan plan_operation(const Work& work, std::span<const DeviceState> devices, const PlanOptions& options) {
  const std::vector<DeviceState> usable = usable_devices(work, devices, options);
  Problem problem{work, usable, options, bound_work(work, usable, options)};
  const auto planned = [&] {
    OperationPlan plan;
    std::vector<TaskletPlan> pieces = scheme_of(options.partition)(problem);
    if (pieces.empty()) pieces = scheme_of(Partition::equal)(problem);  // a search of unlike devices may find nothing
    require_whole(work, pieces, options.partition);
    plan.tasklets = finish_pieces(work, pieces, usable, options);
    total_up(work, plan, usable, options);
    plan.lower_bound = Seconds(problem.bound.finish);
    return plan;
  };
  OperationPlan plan = planned();
  const bool alone = options.objective == Objective::alone && options.partition == Partition::automatic;
  if (alone && work.kind == WorkKind::gemm && work.instances == 1 && plan.busy > kFarFromBound * plan.lower_bound) {
    const double enough = plan.busy.value() / kFarFromBound * kMargin;
    plan.lower_bound = Seconds(sharper_bound(work, whole_of(work).box, device_rates_of(usable, options.server, 1),
                                             options.server, problem.bound, enough));
    if (options.search_stages.runs(SearchStage::again) && std::ssize(usable) > kFewDevices &&
        plan.busy > kWorthAgain * plan.lower_bound) {
      problem.bound.wanted = kCloseToBound * plan.lower_bound.value();
      OperationPlan other = planned();
      if (other.busy < plan.busy) {
        other.lower_bound = plan.lower_bound;
        plan = std::move(other);
      }
    }
  }
  return plan;
}

const char* name_of(Bottleneck bottleneck) {
  switch (bottleneck) {
    case Bottleneck::none: return "none";
    case Bottleneck::downlink: return "downlink";
    case Bottleneck::compute: return "compute";
    case Bottleneck::uplink: return "uplink";
    case Bottleneck::server_out: return "server out";
    case Bottleneck::server_in: return "server in";
    case Bottleneck::latency: return "latency";
    case Bottleneck::memory: return "memory";
  }
  return "?";
}

}  // namespace cleave::plan
