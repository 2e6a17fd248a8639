// Costing pipelines, their exchange and their update.
#include "pipeline_grid.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cleave/plan/cost.hpp"
#include "collective.hpp"
#include "pipeline.hpp"

namespace cleave::rivals {

namespace {

StageHop stage_hop(const Network& network, std::size_t from, std::size_t to, double bytes_per_sequence) {
  const Hop header = network.hop(from, to, 0), one = network.hop(from, to, bytes_per_sequence);
  return {.send_s = one.send_s - header.send_s,
          .receive_s = one.receive_s - header.receive_s,
          .send_fixed_s = header.send_s,
          .receive_fixed_s = header.receive_s,
          .latency_s = header.latency_s};
}

void count_messages(sched::Usage& from, sched::Usage& to, double payload, std::size_t messages) {
  const Bytes bytes(std::llround(payload) + static_cast<std::int64_t>(messages) * plan::kMessageHeader.value());
  from.bytes_up += bytes;
  to.bytes_down += bytes;
}

}  // namespace

std::int64_t StageMemory::fit(double memory, std::int64_t most) const {
  const double room = memory - state - at_work;
  if (room < 0) return 0;
  if (per_flight * static_cast<double>(most) <= room) return most;
  return static_cast<std::int64_t>(std::floor(room / per_flight));
}

StageMemory stage_memory(const Workload& workload, std::size_t first, std::size_t last, std::int64_t micro_batch,
                         bool recompute, std::int64_t sharing) {
  const auto sequences = static_cast<double>(micro_batch);
  StageMemory memory;
  const double whole = 2.0 * static_cast<double>(workload.element);  // weight and gradient, as they travel
  const double state = whole + (static_cast<double>(Workload::kStateBytes) - whole) / static_cast<double>(sharing);
  memory.state = static_cast<double>(workload.parameters(first, last)) * state;
  memory.per_flight = sequences * (recompute ? workload.input_bytes(first, last) : workload.kept_bytes(first, last));
  memory.at_work = sequences * (workload.units[first].input_bytes + workload.units[last - 1].output_bytes +
                                (recompute ? workload.largest_kept_bytes(first, last) : 0));
  return memory;
}

PipelineGrid::PipelineGrid(const StudyInput& study, Workload workload, Grid grid, PipelineSchedule schedule)
    : ReplicaGrid(study, std::move(workload), std::move(grid)), schedule_(std::move(schedule)) {
  for (std::size_t s = 0; s + 1 < schedule_.cuts.size(); ++s) {
    memory_.push_back(stage_memory(this->workload(), schedule_.cuts[s], schedule_.cuts[s + 1], schedule_.micro_batch,
                                   schedule_.recompute, schedule_.sharing));
  }
}

bool PipelineGrid::fits() const {
  for (const std::vector<std::size_t>& pipeline : grid()) {
    for (std::size_t s = 0; s < pipeline.size(); ++s) {
      const auto have = static_cast<double>(network().device(pipeline[s]).memory.value());
      if (memory_[s].with(1) > have) return false;
    }
  }
  return true;
}

double PipelineGrid::least_s() const {
  const std::vector<std::int64_t> shares = shares_of(grid());
  const auto pipelines = static_cast<double>(grid().size());
  double least_s = 0;
  for (std::size_t r = 0; r < grid().size(); ++r) {
    const auto sequences = static_cast<double>(shares[r]);
    for (std::size_t s = 0; s < grid()[r].size(); ++s) {
      const std::size_t here = grid()[r][s], first = schedule_.cuts[s], last = schedule_.cuts[s + 1];
      const double flops = workload().forward_flops(first, last) + workload().backward_flops(first, last);
      const auto gradients = static_cast<double>(workload().parameters(first, last) * workload().element);
      double up_s = 0;
      if (s + 1 < grid()[r].size())
        up_s += network()
                    .hop(here, grid()[r][s + 1],
                         sequences * schedule_.share_of_hop(s) * workload().units[last - 1].output_bytes)
                    .send_s;
      if (s > 0)
        up_s += network()
                    .hop(here, grid()[r][s - 1],
                         sequences * schedule_.share_of_hop(s - 1) * workload().units[first].input_bytes)
                    .send_s;
      if (!network().measured())
        up_s += 2 * (pipelines - 1) / pipelines * gradients / network().device(here).uplink.value();
      least_s = std::max({least_s, up_s, sequences * flops / network().device(here).compute.value()});
    }
  }
  return least_s;
}

// DTFM knows one kind of device: every pipeline gets the same share.
std::vector<std::int64_t> PipelineGrid::shares_of(const Grid& grid) const {
  return apportion(workload().batch, std::vector<double>(grid.size(), 1.0));
}

// Runs every pipeline with a share; returns, per stage, when the last of its devices is quiet.
std::vector<double> PipelineGrid::run_pipelines(const Grid& grid, const std::vector<std::int64_t>& shares,
                                                StepCost& cost) const {
  const std::size_t stages = memory_.size();
  std::vector<double> quiet_s(stages, 0);
  std::vector<Stage> run(stages);
  for (std::size_t r = 0; r < grid.size(); ++r) {
    if (shares[r] == 0) continue;
    const std::vector<std::int64_t> micro_batches = split_batch(shares[r], schedule_.micro_batch);
    const auto sequences = static_cast<double>(shares[r]);
    for (std::size_t s = 0; s < stages; ++s) {
      const std::size_t here = grid[r][s], first = schedule_.cuts[s], last = schedule_.cuts[s + 1];
      const fleet::DeviceProfile& device = network().device(here);
      const double forward = workload().forward_flops(first, last), backward = workload().backward_flops(first, last);
      const double rate = device.compute.value();
      run[s] = {.forward_s = forward / rate,
                .backward_s = (backward + (schedule_.recompute ? forward : 0)) / rate,
                .in_flight = std::max<std::int64_t>(1, memory_[s].fit(static_cast<double>(device.memory.value()),
                                                                      static_cast<std::int64_t>(micro_batches.size()))),
                .next = {},
                .previous = {}};
      if (s + 1 < stages)
        run[s].next = stage_hop(network(), here, grid[r][s + 1],
                                schedule_.share_of_hop(s) * workload().units[last - 1].output_bytes);
      if (s > 0)
        run[s].previous = stage_hop(network(), here, grid[r][s - 1],
                                    schedule_.share_of_hop(s - 1) * workload().units[first].input_bytes);
    }
    const std::vector<StageTimes> times = run_pipeline(run, micro_batches);
    for (std::size_t s = 0; s < stages; ++s) {
      sched::Usage& used = cost.usage[grid[r][s]];
      used.compute += Seconds(times[s].compute_s);
      used.up += Seconds(times[s].up_s);
      used.down += Seconds(times[s].down_s);
      used.memory_peak = Bytes(std::llround(memory_[s].with(times[s].most_in_flight)));
      quiet_s[s] = std::max(quiet_s[s], times[s].quiet_s);
      if (s + 1 < stages) {
        sched::Usage& after = cost.usage[grid[r][s + 1]];
        const double payload =
            sequences * schedule_.share_of_hop(s) * workload().units[schedule_.cuts[s + 1] - 1].output_bytes;
        count_messages(used, after, payload, micro_batches.size());
        count_messages(after, used, payload, micro_batches.size());
      }
    }
  }
  return quiet_s;
}

// Exchange of gradients within stages, of a tied embedding between the ends of each pipeline, and the update.
void PipelineGrid::finish_stages(const Grid& grid, const std::vector<double>& quiet_s, StepCost& cost) const {
  const std::size_t stages = memory_.size();
  std::vector<double> end_s(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<std::size_t> members;
    for (const std::vector<std::size_t>& pipeline : grid) members.push_back(pipeline[s]);
    const std::int64_t parameters = workload().parameters(schedule_.cuts[s], schedule_.cuts[s + 1]);
    const CollectiveCost exchange =
        sharded_exchange(network(), members, static_cast<double>(parameters * workload().element));
    end_s[s] = quiet_s[s] + exchange.time_s;
    double update_s = 0;
    charge(exchange, members, cost.usage);
    for (const std::size_t member : members) {
      const Seconds update =
          Flops(Workload::kUpdateFlops * static_cast<double>(parameters)) / network().device(member).compute;
      cost.usage[member].compute += update;
      update_s = std::max(update_s, update.value());
    }
    cost.time_s = std::max(cost.time_s, end_s[s] + update_s);
    if (s + 1 < stages || s == 0 || workload().tied_parameters == 0) continue;
    const auto tied = static_cast<double>(workload().tied_parameters * workload().element);
    for (const std::vector<std::size_t>& pipeline : grid) {
      const double exchange_s =
          charge_exchange_between(network(), std::span(&pipeline[0], 1), std::span(&pipeline[s], 1), tied, cost.usage);
      cost.time_s = std::max(cost.time_s, std::max(end_s[0], end_s[s]) + exchange_s + update_s);
    }
  }
}

StepCost PipelineGrid::cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const {
  StepCost cost;
  cost.usage.resize(network().size());
  const std::vector<double> quiet_s = run_pipelines(grid, shares, cost);
  Grid working;
  for (std::size_t r = 0; r < grid.size(); ++r) {
    if (shares[r] > 0) working.push_back(grid[r]);
  }
  finish_stages(working, quiet_s, cost);
  return cost;
}

}  // namespace cleave::rivals
