// Samples within a group, steps, and the latency of a round.
#include "asteroid_plan.hpp"

#include <algorithm>
#include <cmath>

#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

// Samples that fit a device's memory, at most `most`.
std::int64_t room_for(const AsteroidProblem& problem, std::size_t device, std::size_t first, std::size_t last,
                      std::int64_t sharing, std::int64_t in_flight, std::int64_t most) {
  const StageMemory one = stage_memory(problem.workload, first, last, 1, problem.recompute, sharing);
  const double room = static_cast<double>(problem.network.device(device).memory.value()) - one.state;
  const double per_sample = one.at_work + static_cast<double>(in_flight) * one.per_flight;
  if (room < 0) return 0;
  if (per_sample * static_cast<double>(most) <= room) return most;
  return static_cast<std::int64_t>(std::floor(room / per_sample));
}

// With the moments in shards on `sharing` devices.
Allocation allocate_among(const AsteroidProblem& problem, std::span<const std::size_t> members, std::size_t first,
                          std::size_t last, std::int64_t in_flight, std::int64_t sharing) {
  const std::size_t n = members.size();
  const std::int64_t flights = std::min(in_flight, problem.micro_batches);
  std::vector<std::int64_t> room(n), samples(n, 0);
  std::vector<double> rate(n);
  std::int64_t total_room = 0;
  for (std::size_t i = 0; i < n; ++i) {
    room[i] = room_for(problem, members[i], first, last, sharing, flights, problem.micro_batch);
    rate[i] = problem.network.device(members[i]).compute.value();
    total_room += room[i];
  }
  Allocation allocation;
  if (total_room < problem.micro_batch) return allocation;

  // (a)
  std::int64_t left = problem.micro_batch;
  while (left > 0) {
    std::vector<double> weights(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      if (samples[i] < room[i]) weights[i] = rate[i];
    }
    const std::vector<std::int64_t> more = apportion(left, weights);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t taken = std::min(more[i], room[i] - samples[i]);
      samples[i] += taken;
      left -= taken;
    }
  }
  // (b)
  const auto time_with = [&](std::size_t i, std::int64_t extra) {
    return static_cast<double>(samples[i] + extra) / rate[i];
  };
  for (;;) {
    std::size_t slowest = 0, fastest = n;
    for (std::size_t i = 0; i < n; ++i) {
      if (time_with(i, 0) > time_with(slowest, 0)) slowest = i;
      if (samples[i] < room[i] && (fastest == n || time_with(i, 1) < time_with(fastest, 1))) fastest = i;
    }
    if (fastest == n || fastest == slowest || time_with(fastest, 1) >= time_with(slowest, 0)) break;
    --samples[slowest];
    ++samples[fastest];
  }

  const double forward = problem.workload.forward_flops(first, last);
  const double backward = problem.workload.backward_flops(first, last) + (problem.recompute ? forward : 0);
  double slowest = 0;
  for (std::size_t i = 0; i < n; ++i) slowest = std::max(slowest, time_with(i, 0));
  allocation.samples = std::move(samples);
  allocation.forward_s = slowest * forward;
  allocation.backward_s = slowest * backward;
  return allocation;
}

}  // namespace

// Members without samples take no part in the all-reduce and hold no shard, so the others' shards are larger. Fewer
// devices share from pass to pass, so it ends.
Allocation allocate_samples(const AsteroidProblem& problem, std::span<const std::size_t> members, std::size_t first,
                            std::size_t last, std::int64_t in_flight) {
  std::int64_t sharing = problem.sharing(members.size());
  for (;;) {
    Allocation allocation = allocate_among(problem, members, first, last, in_flight, sharing);
    const auto active = std::ranges::count_if(allocation.samples, [](std::int64_t samples) { return samples > 0; });
    const std::int64_t holders = problem.sharing(static_cast<std::size_t>(active));
    if (!allocation.found() || holders >= sharing) return allocation;
    sharing = holders;
  }
}

double all_reduce_s(const AsteroidProblem& problem, const AsteroidStage& stage) {
  std::vector<std::size_t> active;
  for (std::size_t i = 0; i < stage.members.size(); ++i) {
    if (stage.samples[i] > 0) active.push_back(stage.members[i]);
  }
  if (active.size() < 2) return 0;
  const auto g = static_cast<double>(active.size());
  const auto gradients =
      static_cast<double>(problem.workload.parameters(stage.first, stage.last) * problem.workload.element);
  return 2 * (g - 1) / g * gradients / problem.network.slowest_rate(active, active);
}

double communication_s(const AsteroidProblem& problem, std::span<const std::size_t> from,
                       std::span<const std::size_t> to, double bytes_per_sample) {
  const double slowest = std::min(problem.network.slowest_rate(from, to), problem.network.slowest_rate(to, from));
  return static_cast<double>(problem.micro_batch) * bytes_per_sample / slowest;
}

RoundSummary RoundSummary::behind(double forward_s, double backward_s, double reduce_s, double micro_batches) const {
  const double step_s = forward_s + backward_s;
  RoundSummary whole;
  whole.after_s = std::max(reduce_s - step_s, after_s - backward_s);
  if (step_s > dominant_s) {
    whole.dominant_s = step_s;
    whole.before_s = micro_batches * step_s;
    whole.latency_s = micro_batches * step_s + std::max(reduce_s, forward_s + after_s);
  } else {
    whole.dominant_s = dominant_s;
    whole.before_s = before_s + step_s;
    whole.latency_s = std::max(whole.before_s + reduce_s, forward_s + latency_s);
  }
  return whole;
}

double round_latency_s(const AsteroidProblem& problem, const std::vector<AsteroidStage>& stages) {
  struct Step {
    double forward_s, backward_s, reduce_s;
  };
  std::vector<Step> steps;
  for (std::size_t p = 0; p < stages.size(); ++p) {
    const AsteroidStage& stage = stages[p];
    if (p > 0) {
      const double time_s = communication_s(problem, stages[p - 1].members, stage.members,
                                            problem.workload.units[stage.first].input_bytes);
      steps.push_back({time_s, time_s, 0});
    }
    double slowest = 0;
    for (std::size_t i = 0; i < stage.members.size(); ++i) {
      slowest = std::max(
          slowest, static_cast<double>(stage.samples[i]) / problem.network.device(stage.members[i]).compute.value());
    }
    const double forward = problem.workload.forward_flops(stage.first, stage.last);
    const double backward =
        problem.workload.backward_flops(stage.first, stage.last) + (problem.recompute ? forward : 0);
    steps.push_back({slowest * forward, slowest * backward, all_reduce_s(problem, stage)});
  }
  std::size_t dominant = 0;
  const auto length = [&](std::size_t s) { return steps[s].forward_s + steps[s].backward_s; };
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (length(s) >= length(dominant)) dominant = s;
  }
  double latency_s = 0, wait_s = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    double execution_s = static_cast<double>(problem.micro_batches) * length(dominant);
    for (std::size_t i = s; i < dominant; ++i) execution_s += length(i);
    for (std::size_t i = dominant + 1; i <= s; ++i) execution_s -= length(i);
    latency_s = std::max(latency_s, wait_s + execution_s + steps[s].reduce_s);
    wait_s += steps[s].forward_s;
  }
  return latency_s;
}

}  // namespace cleave::rivals
