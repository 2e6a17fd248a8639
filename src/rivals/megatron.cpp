// megatron: pipeline x tensor x data parallelism with moments in shards (ZeRO-1).
//
// A replica has `stages` stages of `degree` devices. Within a stage every layer is split over its devices, with two
// all-reduces of activations forward and two backward (two more where a forward pass is run again), not under compute;
// activations are kept in shards (sequence parallelism). Between stages each device sends its share of the boundary to
// its counterpart (the scatter-gather of Narayanan et al.), under compute. Devices of one position in all replicas
// exchange gradients and weights once a step, each keeping its share of moments and master weights. Sources: Shoeybi et
// al. 2019, Narayanan et al. 2021 (arXiv 2104.04473), Korthikanti et al. 2022, Rajbhandari et al. 2020.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "cleave/base/random.hpp"
#include "cleave/base/show.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"

namespace cleave::rivals {

namespace {

struct MegatronLayout {
  std::vector<std::size_t> cuts;  ///< stage s has units [cuts[s], cuts[s+1])
  std::size_t degree = 1;         ///< devices of a stage; position = stage * degree + shard
  std::int64_t micro_batch = 1;
  bool recompute = false;
  [[nodiscard]] std::size_t stages() const { return cuts.size() - 1; }
};

// Memory of one device of a stage.
StageMemory share_of_stage(const Workload& workload, const MegatronLayout& layout, std::size_t stage,
                           std::int64_t sharing) {
  StageMemory memory =
      stage_memory(workload, layout.cuts[stage], layout.cuts[stage + 1], layout.micro_batch, layout.recompute, sharing);
  const double share = 1.0 / static_cast<double>(layout.degree);
  memory.state *= share;
  memory.per_flight *= share;
  if (layout.degree > 1) {  // an all-reduce holds its input and its result
    memory.at_work =
        memory.at_work * share + 2 * static_cast<double>(layout.micro_batch) * workload.units.front().output_bytes;
  }
  return memory;
}

class MegatronGrid final : public ReplicaGrid {
 public:
  MegatronGrid(const StudyInput& study, const Workload& model, Grid grid, MegatronLayout layout)
      : ReplicaGrid(study, model, std::move(grid)), layout_(std::move(layout)), copies_(sharing_of(study, 2) == 1) {}

  /// True when every device holds its share of a stage with one micro-batch in flight.
  [[nodiscard]] bool fits() const {
    const Grid& replicas = grid();
    for (std::size_t s = 0; s < layout_.stages(); ++s) {
      const double need = memory_of(s, replicas.size()).with(1);
      for (const std::vector<std::size_t>& replica : replicas) {
        for (std::size_t i = 0; i < layout_.degree; ++i) {
          const fleet::DeviceProfile& device = network().device(replica[s * layout_.degree + i]);
          if (need > static_cast<double>(device.memory.value())) return false;
        }
      }
    }
    return true;
  }

  /// No step is shorter. In each replica a stage begins when a micro-batch has passed the stages below it, its
  /// processors or uplinks are taken for all of the share, and what it sends back last is run by the stages below; then
  /// gradients are reduced.
  [[nodiscard]] double least_s() const {
    const std::vector<std::int64_t> shares = shares_of(grid());
    std::vector<double> end_s(layout_.stages(), 0);
    Grid working;
    for (std::size_t r = 0; r < grid().size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid()[r]);
      const auto size = static_cast<double>(split_batch(shares[r], layout_.micro_batch).back());
      std::vector<Stage> run;
      std::vector<double> done_s;
      double begin_s = 0;
      for (std::size_t s = 0; s < layout_.stages(); ++s) {
        const Stage& stage = run.emplace_back(stage_of(grid()[r], s));
        done_s.push_back(begin_s +
                         static_cast<double>(shares[r]) *
                             std::max(stage.forward_s + stage.backward_s, stage.next.send_s + stage.previous.send_s));
        begin_s += size * (stage.forward_s + std::max(stage.next.send_s, stage.next.receive_s));
      }
      double last_s = 0;  // of the last backward pass
      for (std::size_t s = layout_.stages(); s-- > 0;) {
        if (s + 1 < layout_.stages()) {
          const StageHop& hop = run[s + 1].previous;
          last_s =
              std::max(done_s[s + 1], last_s + size * std::max(hop.send_s, hop.receive_s)) + size * run[s].backward_s;
        }
        end_s[s] = std::max({end_s[s], done_s[s], last_s});
      }
    }
    double least_s = 0;
    for (std::size_t s = 0; s < layout_.stages(); ++s) {
      for (std::size_t i = 0; i < layout_.degree; ++i)
        least_s = std::max(least_s, end_s[s] + exchange_of(working, s, i).time_s);
    }
    return least_s;
  }

 private:
  [[nodiscard]] StageMemory memory_of(std::size_t stage, std::size_t replicas) const {
    return share_of_stage(workload(), layout_, stage,
                          copies_ ? std::max<std::int64_t>(1, static_cast<std::int64_t>(replicas) / 2)
                                  : static_cast<std::int64_t>(replicas));
  }

  /// Bytes of a sequence's boundary tensor.
  [[nodiscard]] double boundary() const { return workload().units.front().output_bytes; }

  [[nodiscard]] std::vector<std::size_t> members(const std::vector<std::size_t>& replica, std::size_t stage) const {
    const auto first = replica.begin() + static_cast<std::ptrdiff_t>(stage * layout_.degree);
    return {first, first + static_cast<std::ptrdiff_t>(layout_.degree)};
  }

  /// Transformer layers among the units of a stage: the embedding is the first unit, the head the last.
  [[nodiscard]] double layers(std::size_t stage) const {
    const std::size_t last = workload().units.size() - 1;
    return static_cast<double>(std::min(layout_.cuts[stage + 1], last) - std::max<std::size_t>(layout_.cuts[stage], 1));
  }

  /// All-reduces of a stage's forward pass, and of its backward pass: two a layer; of the embedding a scatter forward
  /// and a gather backward, and the other way round of the head, each half of one.
  [[nodiscard]] double reductions(std::size_t stage) const {
    const double ends = (stage == 0 ? 0.5 : 0.0) + (stage + 1 == layout_.stages() ? 0.5 : 0.0);
    return layout_.degree > 1 ? 2 * layers(stage) + ends : 0;
  }
  /// Those of the layers' forward passes that run again.
  [[nodiscard]] double reductions_again(std::size_t stage) const {
    return layout_.degree > 1 && layout_.recompute ? 2 * layers(stage) : 0;
  }

  [[nodiscard]] double parameters_of_shard(std::size_t stage) const {
    return static_cast<double>(workload().parameters(layout_.cuts[stage], layout_.cuts[stage + 1])) /
           static_cast<double>(layout_.degree);
  }
  /// The devices that have one shard of a stage.
  [[nodiscard]] std::vector<std::size_t> copies_of(const Grid& working, std::size_t stage, std::size_t shard) const {
    std::vector<std::size_t> group;
    for (const std::vector<std::size_t>& replica : working) group.push_back(replica[stage * layout_.degree + shard]);
    return group;
  }
  /// Of their gradients and weights.
  [[nodiscard]] CollectiveCost exchange_of(const Grid& working, std::size_t stage, std::size_t shard) const {
    return ring_all_reduce(network(), copies_of(working, stage, shard),
                           parameters_of_shard(stage) * static_cast<double>(workload().element));
  }

  // Per sequence: latencies of all-reduces are spread over the micro-batch.
  [[nodiscard]] Stage stage_of(const std::vector<std::size_t>& replica, std::size_t s) const {
    const std::size_t first = layout_.cuts[s], last = layout_.cuts[s + 1];
    const std::vector<std::size_t> here = members(replica, s);
    const auto size = static_cast<double>(layout_.micro_batch), degree = static_cast<double>(layout_.degree);
    double rate = std::numeric_limits<double>::infinity(), have = rate;
    for (const std::size_t d : here) {
      rate = std::min(rate, network().device(d).compute.value());
      have = std::min(have, static_cast<double>(network().device(d).memory.value()));
    }
    const double reduce_s = ring_all_reduce(network(), here, size * boundary()).time_s / size;
    const double forward = workload().forward_flops(first, last) / degree / rate;
    const double backward = workload().backward_flops(first, last) / degree / rate;
    Stage stage;
    stage.forward_s = forward + reductions(s) * reduce_s;
    stage.backward_s = backward + (layout_.recompute ? forward : 0) + (reductions(s) + reductions_again(s)) * reduce_s;
    stage.in_flight = std::max<std::int64_t>(1, memory_of(s, grid().size()).fit(have, workload().batch));
    if (s + 1 < layout_.stages()) stage.next = hop_between(here, members(replica, s + 1));
    if (s > 0) stage.previous = hop_between(here, members(replica, s - 1));
    return stage;
  }

  // Every device to its counterpart; the slowest pair sets the pace.
  [[nodiscard]] StageHop hop_between(const std::vector<std::size_t>& from, const std::vector<std::size_t>& to) const {
    StageHop slowest;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Hop header = network().hop(from[i], to[i], 0);
      const Hop one = network().hop(from[i], to[i], boundary() / static_cast<double>(from.size()));
      slowest.send_s = std::max(slowest.send_s, one.send_s - header.send_s);
      slowest.receive_s = std::max(slowest.receive_s, one.receive_s - header.receive_s);
      slowest.send_fixed_s = std::max(slowest.send_fixed_s, header.send_s);
      slowest.receive_fixed_s = std::max(slowest.receive_fixed_s, header.receive_s);
      slowest.latency_s = std::max(slowest.latency_s, header.latency_s);
    }
    return slowest;
  }

  // In proportion to the pace of each replica's slowest stage.
  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> paces;
    for (const std::vector<std::size_t>& replica : grid) {
      double slowest_s = 0;
      for (std::size_t s = 0; s < layout_.stages(); ++s) {
        const Stage stage = stage_of(replica, s);
        slowest_s = std::max(slowest_s, stage.forward_s + stage.backward_s);
      }
      paces.push_back(1 / slowest_s);
    }
    return apportion(workload().batch, paces);
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    StepCost cost;
    cost.usage.resize(network().size());
    std::vector<double> quiet_s(layout_.stages(), 0);
    Grid working;
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid[r]);
      run_replica(grid[r], shares[r], quiet_s, cost.usage);
    }
    double ends_s = 0;  // when both ends have exchanged their gradients, and their updates
    for (std::size_t s = 0; s < layout_.stages(); ++s) {
      for (std::size_t i = 0; i < layout_.degree; ++i) {
        const std::vector<std::size_t> group = copies_of(working, s, i);
        const CollectiveCost exchanged = exchange_of(working, s, i);
        charge(exchanged, group, cost.usage);
        double update_s = 0;
        const double mine = parameters_of_shard(s) / static_cast<double>(group.size());
        for (const std::size_t d : group) {
          const double time_s = Workload::kUpdateFlops * mine / network().device(d).compute.value();
          cost.usage[d].compute += Seconds(time_s);
          update_s = std::max(update_s, time_s);
        }
        const double end_s = quiet_s[s] + exchanged.time_s + update_s;
        cost.time_s = std::max(cost.time_s, end_s);
        if (s == 0 || s + 1 == layout_.stages()) ends_s = std::max(ends_s, end_s);
      }
    }
    if (layout_.stages() > 1 && workload().tied_parameters > 0) exchange_tied(working, ends_s, cost);
    // All-reduces count as compute above, so that a link may carry one and a boundary at once: granted, but no link is
    // taken for more than the step.
    for (const sched::Usage& used : cost.usage)
      cost.time_s = std::max({cost.time_s, used.up.value(), used.down.value()});
    return cost;
  }

  // The embedding's shards and the head's, which lie on counterparts of the first and the last stage.
  void exchange_tied(const Grid& working, double begin_s, StepCost& cost) const {
    const double bytes =
        static_cast<double>(workload().tied_parameters * workload().element) / static_cast<double>(layout_.degree);
    for (std::size_t i = 0; i < layout_.degree; ++i) {
      const double time_s = charge_exchange_between(network(), copies_of(working, 0, i),
                                                    copies_of(working, layout_.stages() - 1, i), bytes, cost.usage);
      cost.time_s = std::max(cost.time_s, begin_s + time_s);
    }
  }

  void run_replica(const std::vector<std::size_t>& replica, std::int64_t share, std::vector<double>& quiet_s,
                   std::vector<sched::Usage>& usage) const {
    std::vector<Stage> run;
    for (std::size_t s = 0; s < layout_.stages(); ++s) run.push_back(stage_of(replica, s));
    const std::vector<std::int64_t> micro_batches = split_batch(share, layout_.micro_batch);
    const std::vector<StageTimes> times = run_pipeline(run, micro_batches);
    const auto sequences = static_cast<double>(share), passes = static_cast<double>(micro_batches.size());
    const auto header = static_cast<double>(plan::kMessageHeader.value());
    for (std::size_t s = 0; s < layout_.stages(); ++s) {
      quiet_s[s] = std::max(quiet_s[s], times[s].quiet_s);
      const std::size_t first = layout_.cuts[s], last = layout_.cuts[s + 1];
      const std::vector<std::size_t> here = members(replica, s);
      const double flops = (workload().forward_flops(first, last) * (layout_.recompute ? 2 : 1) +
                            workload().backward_flops(first, last)) /
                           static_cast<double>(layout_.degree);
      const double rounds = (2 * reductions(s) + reductions_again(s)) * passes;
      for (std::size_t i = 0; i < here.size(); ++i) {
        sched::Usage& used = usage[here[i]];
        used.compute += Seconds(sequences * flops / network().device(here[i]).compute.value());
        used.up += Seconds(times[s].up_s);
        used.down += Seconds(times[s].down_s);
        const double neighbours = (s > 0 ? 1 : 0) + (s + 1 < layout_.stages() ? 1 : 0);
        const Bytes bytes(std::llround(
            neighbours * (sequences * boundary() / static_cast<double>(layout_.degree) + passes * header)));
        used.bytes_up += bytes;
        used.bytes_down += bytes;
        used.memory_peak = Bytes(std::llround(memory_of(s, grid().size()).with(times[s].most_in_flight)));
      }
      charge(scaled(ring_all_reduce(network(), here, sequences / passes * boundary()), rounds), here, usage);
    }
  }

  MegatronLayout layout_;
  bool copies_;  // shares of state are kept twice
};

// Devices so that neighbours in the list have fast links: by their own link, or, where pairs are measured, one by one
// the device whose slowest link to the last `kNear` ones is fastest.
std::vector<std::size_t> neighbours_in_order(const StudyInput& study) {
  std::vector<std::size_t> order = by_link(study);
  if (study.links.empty()) return order;
  constexpr std::size_t kNear = 4;
  const Network network(study.devices, study.links);
  for (std::size_t i = 1; i < order.size(); ++i) {
    double best = -1;
    std::size_t chosen = i;
    for (std::size_t j = i; j < order.size(); ++j) {
      double slowest = std::numeric_limits<double>::infinity();
      for (std::size_t k = i - std::min(i, kNear); k < i; ++k) {
        slowest = std::min(slowest, network.rate(order[k], order[j]));
      }
      if (slowest <= best) continue;
      best = slowest;
      chosen = j;
    }
    std::swap(order[i], order[chosen]);
  }
  return order;
}

class Megatron final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "megatron"; }
  [[nodiscard]] std::string summary() const override {
    return "pipeline x tensor x data parallelism with sharded moments (Megatron, ZeRO-1)";
  }

 private:
  struct Choice {
    Grid grid;
    MegatronLayout layout;
    double step_s = std::numeric_limits<double>::infinity();
  };

  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    const std::vector<std::size_t> order = neighbours_in_order(study);
    // Where devices may be lost also with two replicas, so that one loss takes no state along.
    std::vector<Choice> choices;
    for (const std::size_t replicas : {1, 2}) {
      if (replicas > 1 && !may_lose_devices(study)) break;
      Choice best = choose(study, workload, order, replicas);
      if (best.grid.empty()) break;
      choices.push_back(std::move(best));
    }
    if (choices.empty()) {
      report.why = why_not(study, workload);
      return {};
    }
    report.figures = {{"random_placement_s", random_placement_s(study, workload, choices.front())}};
    std::vector<PlacedLayout> candidates;
    for (Choice& choice : choices) {
      std::string text = fmt::format(
          "{} replicas of {} stages of {} devices, micro-batches of {}{}", choice.grid.size(), choice.layout.stages(),
          choice.layout.degree, choice.layout.micro_batch, choice.layout.recompute ? ", layers computed again" : "");
      candidates.push_back({std::move(text), nullptr,
                            std::make_unique<MegatronGrid>(study, workload, std::move(choice.grid), choice.layout)});
    }
    return candidates;
  }

  // The shortest step with at least so many replicas; an empty grid where nothing fits.
  static Choice choose(const StudyInput& study, const Workload& workload, const std::vector<std::size_t>& order,
                       std::size_t replicas) {
    Choice best;
    for (std::size_t degree = 1; degree <= order.size(); ++degree) {
      if (study.model.n_head % static_cast<std::int64_t>(degree) != 0) continue;
      const std::size_t most = std::min(workload.units.size(), order.size() / degree / replicas);
      for (std::size_t stages = 1; stages <= most; ++stages) {
        try_replicas(study, workload, order, {cut_evenly(workload, stages), degree, 1, false}, replicas, best);
      }
      if (study.progress)
        study.progress(fmt::format("megatron: {} devices a stage, best {:.4g} s", degree, best.step_s));
    }
    return best;
  }

  static Grid grid_of(const std::vector<std::size_t>& devices, std::size_t replicas, std::size_t positions) {
    Grid grid(replicas);
    for (std::size_t i = 0; i < replicas * positions; ++i) grid[i / positions].push_back(devices[i]);
    return grid;
  }

  // Micro-batches are powers of two, numbers of replicas fall by a fifth from the most that the devices make.
  static void try_replicas(const StudyInput& study, const Workload& workload, const std::vector<std::size_t>& order,
                           MegatronLayout layout, std::size_t least, Choice& best) {
    const std::size_t positions = layout.stages() * layout.degree;
    const std::size_t most = std::min(order.size() / positions, static_cast<std::size_t>(workload.batch));
    for (std::size_t replicas = most; replicas >= least; replicas = fewer(replicas)) {
      // Of the devices that hold the largest share of any stage the best-connected ones.
      layout.micro_batch = 1;
      layout.recompute = true;
      double need = 0;
      for (std::size_t s = 0; s < layout.stages(); ++s) {
        need = std::max(need, share_of_stage(workload, layout, s, sharing_of(study, replicas)).with(1));
      }
      const std::vector<std::size_t> able = with_room(study, order, need, replicas * positions);
      if (able.size() < replicas * positions) continue;
      for (const Grid& grid : worth_trying(study, grid_of(able, replicas, positions)))
        try_schedules(study, workload, grid, layout, best);
    }
  }

  static void try_schedules(const StudyInput& study, const Workload& workload, const Grid& grid, MegatronLayout layout,
                            Choice& best) {
    for (const bool recompute : {false, true}) {
      layout.recompute = recompute;
      for (layout.micro_batch = 1; layout.micro_batch <= workload.batch; layout.micro_batch *= 2) {
        const MegatronGrid trial(study, workload, grid, layout);
        if (!trial.fits()) break;
        if (trial.least_s() >= best.step_s) continue;
        const double step_s = trial.step().time_s;
        if (step_s < best.step_s) best = {grid, layout, step_s};
      }
    }
  }

  // The same shape with its devices in a random order: the median of three.
  static double random_placement_s(const StudyInput& study, const Workload& workload, const Choice& best) {
    std::vector<double> steps;
    for (std::uint32_t draw = 0; draw < 3; ++draw) {
      const Random random(study.seed, Purpose::rivals, 32 + draw);
      std::vector<std::size_t> devices;
      for (const std::vector<std::size_t>& replica : best.grid) {
        devices.insert(devices.end(), replica.begin(), replica.end());
      }
      for (std::size_t i = devices.size(); i > 1; --i) {
        std::swap(devices[i - 1], devices[static_cast<std::size_t>(random.below(i, i))]);
      }
      const Grid grid = grid_of(devices, best.grid.size(), best.grid.front().size());
      steps.push_back(MegatronGrid(study, workload, grid, best.layout).step().time_s);
    }
    std::sort(steps.begin(), steps.end());
    return steps[1];
  }

  static std::string why_not(const StudyInput& study, const Workload& workload) {
    const FleetMemory memory = memory_of_fleet(study);
    return fmt::format(
        "no split of layers over the heads and the devices fits: the model with gradients and moments takes {}; "
        "the largest device has {}, all together {}",
        show_bytes(workload.state_bytes()), show_bytes(memory.largest), show_bytes(memory.together));
  }
};

}  // namespace

std::unique_ptr<System> make_megatron() { return std::make_unique<Megatron>(); }

}  // namespace cleave::rivals
