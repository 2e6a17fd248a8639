// A step of Asteroid, and its pipeline replay.
//
// Replay: (1) the loss is detected; (2) state survives because the devices of a group are copies of each other, and a
// stage of a single device has its weights and moments backed up on the next stage (the last one's on the first); (3)
// light re-planning: the same groups without the lost devices share the samples anew, or, where a stage lost everybody,
// or less time passes that way, units move between the stages so that all moves happen at once; (4) the round goes on:
// samples whose gradients were lost are done again, all of them where a stage lost everybody. Heavy re-scheduling, for
// comparison: the planner starts anew, every device fetches what it now needs, and the round starts from its beginning.
// Neither is charged for the planner's own time, nor for the backups under way.
#include "asteroid_placement.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cleave/plan/cost.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

bool holds(const AsteroidStage& stage, std::size_t device, std::size_t unit) {
  return unit >= stage.first && unit < stage.last &&
         std::find(stage.members.begin(), stage.members.end(), device) != stage.members.end();
}

// What a micro-batch's transfer takes per sample: the slowest member's share over its own link.
double per_sample_s(const AsteroidStage& stage, std::int64_t micro_batch, double bytes, const auto& rate_of) {
  double slowest_s = 0;
  for (std::size_t i = 0; i < stage.members.size(); ++i) {
    const double share = static_cast<double>(stage.samples[i]) / static_cast<double>(micro_batch);
    slowest_s = std::max(slowest_s, share * bytes / rate_of(stage.members[i]));
  }
  return slowest_s;
}

// Without members that have no samples: they take no part in the all-reduce, so they hold nothing that is up to date.
AsteroidPlan only_active(AsteroidPlan plan) {
  for (AsteroidStage& stage : plan.stages) {
    AsteroidStage active = stage;
    active.members.clear();
    active.samples.clear();
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      if (stage.samples[i] == 0) continue;
      active.members.push_back(stage.members[i]);
      active.samples.push_back(stage.samples[i]);
    }
    stage = std::move(active);
  }
  return plan;
}

}  // namespace

// The programme takes time with units^2 blocks^3: 32 blocks of 82 half layers take minutes, 10 half a minute.
std::size_t planner_blocks(std::size_t devices, std::size_t units) {
  if (units > 48) return std::min<std::size_t>(devices, 10);
  return devices <= 48 ? devices : 32;
}

AsteroidPlacement::AsteroidPlacement(const StudyInput& study, Workload workload, const AsteroidProblem& problem,
                                     AsteroidPlan plan)
    : declared_(study.devices),
      devices_(study.devices),
      workload_(std::move(workload)),
      network_(devices_, study.links),
      order_(problem.devices),
      micro_batch_(problem.micro_batch),
      micro_batches_(problem.micro_batches),
      recompute_(problem.recompute),
      sharded_(problem.sharded),
      copies_(problem.copies),
      blocks_(planner_blocks(problem.devices.size(), problem.workload.units.size())),
      original_(only_active(std::move(plan))),
      plan_(original_),
      lost_(study.devices.size(), false) {}

AsteroidProblem AsteroidPlacement::problem() const {
  AsteroidProblem problem{.workload = workload_,
                          .network = network_,
                          .devices = order_,
                          .micro_batch = micro_batch_,
                          .micro_batches = micro_batches_,
                          .recompute = recompute_,
                          .sharded = sharded_,
                          .copies = copies_};
  std::erase_if(problem.devices, [&](std::size_t d) { return lost_[d]; });
  return problem;
}

bool AsteroidPlacement::uses(std::size_t device) const {
  return std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const AsteroidStage& stage) {
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      if (stage.members[i] == device) return stage.samples[i] > 0;
    }
    return false;
  });
}

StepCost AsteroidPlacement::cost_of(const AsteroidPlan& plan) const {
  const std::size_t count = plan.stages.size();
  const std::vector<std::int64_t> micro_batches = split_batch(workload_.batch, micro_batch_);
  const auto passes = static_cast<double>(micro_batches.size()), sequences = static_cast<double>(workload_.batch);
  const auto header = static_cast<double>(plan::kMessageHeader.value());
  StepCost cost;
  cost.usage.resize(network_.size());

  std::vector<Stage> run(count);
  for (std::size_t p = 0; p < count; ++p) {
    const AsteroidStage& stage = plan.stages[p];
    const double forward = workload_.forward_flops(stage.first, stage.last);
    const double backward = workload_.backward_flops(stage.first, stage.last) + (recompute_ ? forward : 0);
    double slowest = 0;  // share of a micro-batch over rate
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      const double share = static_cast<double>(stage.samples[i]) / static_cast<double>(micro_batch_);
      slowest = std::max(slowest, share / devices_[stage.members[i]].compute.value());
    }
    run[p].forward_s = slowest * forward;
    run[p].backward_s = slowest * backward;
    run[p].in_flight = std::min<std::int64_t>(stage.in_flight, static_cast<std::int64_t>(micro_batches.size()));
    const auto hop_to = [&](const AsteroidStage& other, double bytes) {
      const auto up = [&](std::size_t d) {
        return network_.measured() ? network_.slowest_rate(std::span(&d, 1), other.members)
                                   : devices_[d].uplink.value();
      };
      const auto down = [&](std::size_t d) {
        return network_.measured() ? network_.slowest_rate(stage.members, std::span(&d, 1))
                                   : devices_[d].downlink.value();
      };
      StageHop hop;
      hop.send_s = per_sample_s(stage, micro_batch_, bytes, up);
      hop.receive_s = per_sample_s(other, micro_batch_, bytes, down);
      hop.send_fixed_s = hop.receive_fixed_s = header / network_.slowest_rate(stage.members, other.members);
      hop.latency_s = network_.longest_latency_s(stage.members, other.members);
      return hop;
    };
    if (p + 1 < count) run[p].next = hop_to(plan.stages[p + 1], workload_.units[stage.last - 1].output_bytes);
    if (p > 0) run[p].previous = hop_to(plan.stages[p - 1], workload_.units[stage.first].input_bytes);
  }
  const std::vector<StageTimes> times = run_pipeline(run, micro_batches);

  std::vector<double> end_s(count);
  std::vector<std::size_t> lowest;  // devices of the lowest stage that take part
  for (std::size_t p = 0; p < count; ++p) {
    const AsteroidStage& stage = plan.stages[p];
    const StageMemory one =
        stage_memory(workload_, stage.first, stage.last, 1, recompute_, problem().sharing(stage.members.size()));
    const auto parameters = static_cast<double>(workload_.parameters(stage.first, stage.last));
    const double flops = workload_.forward_flops(stage.first, stage.last) * (recompute_ ? 2 : 1) +
                         workload_.backward_flops(stage.first, stage.last);
    std::vector<std::size_t> active;
    double update_s = 0;
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      if (stage.samples[i] == 0) continue;
      const std::size_t d = stage.members[i];
      active.push_back(d);
      sched::Usage& used = cost.usage[d];
      const auto samples = static_cast<double>(stage.samples[i]);
      const double mine = sequences * samples / static_cast<double>(micro_batch_);
      const double rate = devices_[d].compute.value();
      used.compute += Seconds((mine * flops + Workload::kUpdateFlops * parameters) / rate);
      update_s = std::max(update_s, Workload::kUpdateFlops * parameters / rate);
      used.memory_peak = Bytes(std::llround(
          one.state + samples * (one.at_work + static_cast<double>(times[p].most_in_flight) * one.per_flight)));
      // Activations come from the stage before, their gradients from the stage after, and the other way round.
      const auto exchange_with = [&](const AsteroidStage& other, double per_sample) {
        const double bytes = mine * per_sample + passes * header;
        const std::span self(&d, 1);
        used.bytes_up += Bytes(std::llround(bytes));
        used.bytes_down += Bytes(std::llround(bytes));
        used.up += Seconds(
            bytes / (network_.measured() ? network_.slowest_rate(self, other.members) : devices_[d].uplink.value()));
        used.down += Seconds(
            bytes / (network_.measured() ? network_.slowest_rate(other.members, self) : devices_[d].downlink.value()));
      };
      if (p > 0) exchange_with(plan.stages[p - 1], workload_.units[stage.first].input_bytes);
      if (p + 1 < count) exchange_with(plan.stages[p + 1], workload_.units[stage.last - 1].output_bytes);
    }
    const CollectiveCost exchange =
        ring_all_reduce(network_, active, parameters * static_cast<double>(workload_.element));
    charge(exchange, active, cost.usage);
    if (p == 0) lowest = active;
    end_s[p] = times[p].quiet_s + exchange.time_s;
    cost.time_s = std::max(cost.time_s, end_s[p] + update_s);
    if (p + 1 < count || p == 0 || workload_.tied_parameters == 0) continue;
    const auto tied = static_cast<double>(workload_.tied_parameters * workload_.element);
    const double begin_s = std::max(end_s[0], end_s[p]);
    const double exchange_s =
        charge_exchange_between(network_, std::span(lowest).first(1), std::span(active).first(1), tied, cost.usage);
    cost.time_s = std::max(cost.time_s, begin_s + exchange_s + update_s);
  }
  return cost;
}

AsteroidPlan AsteroidPlacement::repaired(bool recut, bool fill) const {
  const AsteroidProblem now = problem();
  std::vector<std::size_t> idle;  // by memory, largest first, as the problem's devices
  for (const std::size_t d : now.devices) {
    if (fill && !uses(d) && !std::any_of(original_.stages.begin(), original_.stages.end(), [&](const auto& stage) {
          return std::find(stage.members.begin(), stage.members.end(), d) != stage.members.end();
        }))
      idle.push_back(d);
  }
  std::size_t taken = 0;
  std::vector<std::vector<std::size_t>> groups;
  AsteroidPlan plan;
  bool complete = true;
  for (const AsteroidStage& stage : original_.stages) {
    AsteroidStage rest = stage;
    for (std::size_t& member : rest.members) {
      if (lost_[member] && taken < idle.size()) member = idle[taken++];
    }
    std::erase_if(rest.members, [&](std::size_t d) { return lost_[d]; });
    if (rest.members.empty()) {
      complete = false;
      continue;
    }
    groups.push_back(rest.members);
    Allocation allocation = allocate_samples(now, rest.members, rest.first, rest.last, rest.in_flight);
    complete = complete && allocation.found();
    rest.samples = std::move(allocation.samples);
    plan.stages.push_back(std::move(rest));
  }
  if (recut || !complete) return recut_units(now, groups);
  plan.round_s = round_latency_s(now, plan.stages);
  return plan;
}

double AsteroidPlacement::migration_s(const AsteroidPlan& from, const AsteroidPlan& to) const {
  std::vector<double> out(network_.size(), 0), in(network_.size(), 0);
  for (const AsteroidStage& target : to.stages) {
    for (std::size_t unit = target.first; unit < target.last; ++unit) {
      const auto bytes = static_cast<double>(workload_.units[unit].parameters * workload_.moved_bytes());
      std::vector<std::size_t> sources;
      for (std::size_t p = 0; p < from.stages.size() && sources.empty(); ++p) {
        const AsteroidStage& stage = from.stages[p];
        if (unit < stage.first || unit >= stage.last) continue;
        sources = stage.members;
        std::erase_if(sources, [&](std::size_t d) { return lost_[d]; });
        if (sources.empty()) sources = from.stages[(p + 1) % from.stages.size()].members;  // the backup
        std::erase_if(sources, [&](std::size_t d) { return lost_[d]; });
      }
      for (const std::size_t device : target.members) {
        const bool had = std::any_of(from.stages.begin(), from.stages.end(),
                                     [&](const AsteroidStage& stage) { return holds(stage, device, unit); });
        if (had || std::find(sources.begin(), sources.end(), device) != sources.end()) continue;
        in[device] += bytes;
        for (const std::size_t source : sources) out[source] += bytes / static_cast<double>(sources.size());
      }
    }
  }
  double longest_s = 0, latency_s = 0;
  for (std::size_t d = 0; d < network_.size(); ++d) {
    if (in[d] + out[d] == 0) continue;
    const auto up = network_.measured() ? network_.slowest_rate(std::span(&d, 1), order_) : devices_[d].uplink.value();
    const auto down =
        network_.measured() ? network_.slowest_rate(order_, std::span(&d, 1)) : devices_[d].downlink.value();
    longest_s = std::max({longest_s, out[d] / up, in[d] / down});
    latency_s = std::max(latency_s, 2 * devices_[d].latency.value());
  }
  return longest_s + latency_s;
}

bool AsteroidPlacement::state_is_safe(const AsteroidPlan& plan) const {
  const auto alive = [&](const AsteroidStage& stage) {
    return std::any_of(stage.members.begin(), stage.members.end(), [&](std::size_t d) { return !lost_[d]; });
  };
  for (std::size_t p = 0; p < plan.stages.size(); ++p) {
    if (alive(plan.stages[p])) continue;
    const bool backed_up = plan.stages[p].members.size() == 1 && plan.stages.size() > 1;
    if (!backed_up || !alive(plan.stages[(p + 1) % plan.stages.size()])) return false;
  }
  return true;
}

Remedy AsteroidPlacement::lose(std::span<const std::size_t> devices, double progress) {
  const double before_s = step().time_s;
  for (const std::size_t device : devices) lost_[device] = true;
  Remedy remedy;
  if (!state_is_safe(plan_)) {
    remedy.survives = false;
    remedy.why = "a stage lost all its devices and with them its weights and moments";
    return remedy;
  }
  // Share of the samples done so far whose gradients are gone.
  double redone = 0;
  for (const AsteroidStage& stage : plan_.stages) {
    double gone = 0;
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      if (lost_[stage.members[i]]) gone += static_cast<double>(stage.samples[i]) / static_cast<double>(micro_batch_);
    }
    redone = std::min(1.0, redone + gone);
  }
  // Light: the best of sharing samples anew and of moving units between stages too, with and without idle devices.
  AsteroidPlan chosen;
  double light_s = std::numeric_limits<double>::infinity();
  for (const auto& [recut, fill] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    AsteroidPlan plan = repaired(recut, fill);
    if (!plan.found()) continue;
    const bool moved = recut || plan.stages.size() != plan_.stages.size();
    // A unit that changes its stage leaves its gradients behind.
    const double again = moved ? 1.0 : redone;
    const double time_s = migration_s(plan_, plan) + cost_of(plan).time_s * ((1 - progress) + progress * again) -
                          before_s * (1 - progress);
    if (time_s >= light_s) continue;
    light_s = time_s;
    chosen = std::move(plan);
  }
  // Heavy, reported beside it.
  const AsteroidPlan anew = plan_asteroid(problem(), blocks_);
  double heavy_s = std::numeric_limits<double>::infinity();
  if (anew.found()) heavy_s = migration_s(plan_, anew) + cost_of(anew).time_s - before_s * (1 - progress);
  if (!chosen.found()) {
    chosen = anew;
    light_s = heavy_s;
  }
  if (!chosen.found()) {
    remedy.survives = false;
    remedy.why = "the devices that remain cannot hold the model";
    return remedy;
  }
  plan_ = only_active(std::move(chosen));
  remedy.added_s = std::max(0.0, light_s);
  if (std::isfinite(heavy_s)) remedy.figures.emplace_back("recovery_heavy_s", std::max(0.0, heavy_s));
  return remedy;
}

void AsteroidPlacement::restore(std::size_t device) {
  lost_[device] = false;
  const bool whole = std::none_of(lost_.begin(), lost_.end(), [](bool lost) { return lost; });
  AsteroidPlan plan = whole ? original_ : repaired(false, true);
  if (plan.found()) plan_ = only_active(std::move(plan));
}

void AsteroidPlacement::slow(std::size_t device, double factor) {
  devices_[device] = fleet::slowed(declared_[device], factor);
}

}  // namespace cleave::rivals
