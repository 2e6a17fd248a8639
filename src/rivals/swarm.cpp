// swarm: pipelines wired at random by throughput (SWARM parallelism), state on the devices.
//
// Every stage has any number of replicas; a micro-batch goes to the replica that will be done first and its gradient
// back the same way (routed_pipeline.hpp). Devices are dealt to stages so that the slowest stage is as fast as can be,
// and boundary tensors travel in 8 bits. Once a batch the replicas of a stage all-reduce their gradients and update.
// The best-connected n devices take part, for the n (falling by a fifth from all) that makes the step shortest.
// When devices are lost, their micro-batches are done again by other replicas, and devices move from the fastest stage
// to the slowest where that helps. Source: Ryabinin et al. 2023 (arXiv 2301.11913).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ranges>
#include <utility>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "pipeline_grid.hpp"
#include "placement.hpp"
#include "replica_grid.hpp"
#include "routed_pipeline.hpp"

namespace cleave::rivals {

namespace {

/// byte/s of each device, by its position: its own links, or the fastest of its measured pairs where those are faster.
struct FastestLinks {
  std::vector<double> up, down;
};
FastestLinks fastest_links(const StudyInput& study) {
  FastestLinks links;
  const Network network(study.devices, study.links);
  for (std::size_t i = 0; i < network.size(); ++i) {
    links.up.push_back(study.devices[i].uplink.value());
    links.down.push_back(study.devices[i].downlink.value());
    for (std::size_t j = 0; network.measured() && j < network.size(); ++j) {
      if (i == j) continue;
      links.up[i] = std::max(links.up[i], network.rate(i, j));
      links.down[i] = std::max(links.down[i], network.rate(j, i));
    }
  }
  return links;
}

struct SwarmLayout {
  std::vector<std::size_t> cuts;                  ///< stage s has units [cuts[s], cuts[s+1])
  std::vector<std::vector<std::size_t>> members;  ///< devices of each stage
  std::int64_t micro_batch = 1;
  bool recompute = false;
  Routing routing = Routing::by_all_resources;
  [[nodiscard]] bool found() const { return !members.empty(); }
};

class SwarmPlacement final : public Placement {
 public:
  SwarmPlacement(const StudyInput& study, const Workload& workload, const FastestLinks& links, SwarmLayout layout)
      : declared_(study.devices),
        devices_(study.devices),
        network_(devices_, study.links),
        workload_(workload),
        declared_links_(links),
        links_(links),
        original_(std::move(layout)),
        now_(original_),
        copies_(sharing_of(study, 2) == 1),
        boundary_bytes_(static_cast<double>(study.swarm.boundary_bits) / 8) {}
  SwarmPlacement(const SwarmPlacement&) = delete;
  SwarmPlacement& operator=(const SwarmPlacement&) = delete;

  [[nodiscard]] StepCost step() const override { return cost_of(now_); }

  [[nodiscard]] bool uses(std::size_t device) const override {
    return std::any_of(now_.members.begin(), now_.members.end(), [&](const std::vector<std::size_t>& stage) {
      return std::find(stage.begin(), stage.end(), device) != stage.end();
    });
  }

  /// Sequences a second of a device at a stage: what its busiest resource allows.
  [[nodiscard]] double throughput(std::size_t device, std::size_t stage) const {
    const std::size_t first = now_.cuts[stage], last = now_.cuts[stage + 1];
    const fleet::DeviceProfile& profile = devices_[device];
    const double flops =
        workload_.forward_flops(first, last) * (now_.recompute ? 2 : 1) + workload_.backward_flops(first, last);
    const double in = stage > 0 ? boundary(stage - 1) : 0;
    const double out = stage + 1 < now_.members.size() ? boundary(stage) : 0;
    return 1 / std::max(
                   {flops / profile.compute.value(), (in + out) / links_.up[device], (in + out) / links_.down[device]});
  }

  /// No step is shorter. A stage begins when a micro-batch has passed the stages below it, its busiest resource is
  /// taken for the whole batch, what it sends back last is run by the stages below, and then gradients are reduced.
  [[nodiscard]] double least_s() const {
    const std::size_t stages = now_.members.size();
    const auto size = static_cast<double>(split_batch(workload_.batch, now_.micro_batch).back());
    double begin_s = 0;
    std::vector<double> done_s(stages, 0), backward_s(stages, 0);
    for (std::size_t s = 0; s < stages; ++s) {
      const double rate = fastest(s, [&](std::size_t d) { return devices_[d].compute.value(); });
      const double forward = workload_.forward_flops(now_.cuts[s], now_.cuts[s + 1]);
      const double backward = workload_.backward_flops(now_.cuts[s], now_.cuts[s + 1]) + (now_.recompute ? forward : 0);
      done_s[s] = begin_s + static_cast<double>(workload_.batch) / throughput_of_stage(s);
      backward_s[s] = size * backward / rate;
      if (s + 1 < stages) begin_s += size * (forward / rate + hop_s(s, s + 1));
    }
    double least_s = 0, last_s = 0;  // of the last backward pass
    for (std::size_t s = stages; s-- > 0;) {
      if (s + 1 < stages) last_s = std::max(done_s[s + 1], last_s + size * hop_s(s + 1, s)) + backward_s[s];
      least_s = std::max(least_s, std::max(done_s[s], last_s) + reduction(now_, s).time_s);
    }
    return least_s;
  }

  [[nodiscard]] std::size_t fewest_replicas() const {
    return std::ranges::min_element(now_.members, {}, &std::vector<std::size_t>::size)->size();
  }
  [[nodiscard]] std::string describe() const {
    const std::size_t most = std::ranges::max_element(now_.members, {}, &std::vector<std::size_t>::size)->size();
    return fmt::format("{} stages of {} to {} replicas, micro-batches of {}{}", now_.members.size(), fewest_replicas(),
                       most, now_.micro_batch, now_.recompute ? ", layers computed again" : "");
  }

  Remedy lose(std::span<const std::size_t> devices, double progress) override {
    const double before_s = step().time_s;
    double gone = 0;  // share of the batch whose gradients are lost: the largest of any stage
    for (std::size_t s = 0; s < now_.members.size(); ++s) {
      double lost = 0;
      for (const std::size_t d : now_.members[s]) {
        if (std::find(devices.begin(), devices.end(), d) != devices.end()) lost += throughput(d, s);
      }
      gone = std::max(gone, lost / throughput_of_stage(s));
    }
    for (std::vector<std::size_t>& stage : now_.members) {
      std::erase_if(stage,
                    [&](std::size_t d) { return std::find(devices.begin(), devices.end(), d) != devices.end(); });
    }
    Remedy remedy;
    if (std::any_of(now_.members.begin(), now_.members.end(), [](const auto& stage) { return stage.empty(); })) {
      remedy.survives = false;
      remedy.why = "a stage lost its last replica and with it its weights and moments";
      return remedy;
    }
    rebalance();
    remedy.added_s = std::max(0.0, step().time_s * (1 - progress * (1 - gone)) - before_s * (1 - progress));
    return remedy;
  }

  void restore(std::size_t device) override {
    for (std::size_t s = 0; s < original_.members.size(); ++s) {
      const std::vector<std::size_t>& stage = original_.members[s];
      if (std::find(stage.begin(), stage.end(), device) != stage.end()) now_.members[s].push_back(device);
    }
    rebalance();
  }

  void slow(std::size_t device, double factor) override {
    devices_[device] = fleet::slowed(declared_[device], factor);
    links_.up[device] = declared_links_.up[device] * factor;
    links_.down[device] = declared_links_.down[device] * factor;
    rebalance();
  }

  /// True when every device holds its stage with one micro-batch in flight.
  [[nodiscard]] bool fits() const {
    for (std::size_t s = 0; s < now_.members.size(); ++s) {
      for (const std::size_t d : now_.members[s]) {
        if (memory_of(s, now_.members[s].size()).with(1) > static_cast<double>(devices_[d].memory.value()))
          return false;
      }
    }
    return true;
  }

 private:
  [[nodiscard]] double boundary(std::size_t stage) const {
    return workload_.units[now_.cuts[stage + 1] - 1].output_bytes / static_cast<double>(workload_.element) *
           boundary_bytes_;
  }

  template <class Rate>
  [[nodiscard]] double fastest(std::size_t stage, Rate rate) const {
    double most = 0;
    for (const std::size_t d : now_.members[stage]) most = std::max(most, rate(d));
    return most;
  }
  /// Of a sequence's boundary between neighbouring stages, at the fastest links of both.
  [[nodiscard]] double hop_s(std::size_t from, std::size_t to) const {
    const double up = fastest(from, [&](std::size_t d) { return links_.up[d]; });
    const double down = fastest(to, [&](std::size_t d) { return links_.down[d]; });
    return boundary(std::min(from, to)) / std::min(up, down);
  }

  [[nodiscard]] double throughput_of_stage(std::size_t stage) const {
    double sum = 0;
    for (const std::size_t d : now_.members[stage]) sum += throughput(d, stage);
    return sum;
  }

  [[nodiscard]] CollectiveCost reduction(const SwarmLayout& layout, std::size_t stage) const {
    const auto parameters = static_cast<double>(workload_.parameters(layout.cuts[stage], layout.cuts[stage + 1]));
    return ring_all_reduce(network_, layout.members[stage], parameters * static_cast<double>(workload_.element));
  }

  // Moments and master weights in shards over the replicas of the stage.
  [[nodiscard]] StageMemory memory_of(std::size_t stage, std::size_t replicas) const {
    return stage_memory(workload_, now_.cuts[stage], now_.cuts[stage + 1], now_.micro_batch, now_.recompute,
                        copies_ ? std::max<std::int64_t>(1, static_cast<std::int64_t>(replicas) / 2)
                                : static_cast<std::int64_t>(replicas));
  }

  // One device at a time from a stage to the slowest one, while that makes the slowest stage faster. A device that
  // moves fetches its new stage's state in the background.
  void rebalance() {
    for (std::size_t moves = 0; moves < devices_.size(); ++moves) {
      std::vector<double> rates;
      for (std::size_t s = 0; s < now_.members.size(); ++s) rates.push_back(throughput_of_stage(s));
      const auto slowest = static_cast<std::size_t>(std::min_element(rates.begin(), rates.end()) - rates.begin());
      double best = rates[slowest];
      std::size_t from = 0, chosen = devices_.size();
      for (std::size_t s = 0; s < now_.members.size(); ++s) {
        if (s == slowest || now_.members[s].size() < 2) continue;
        for (const std::size_t d : now_.members[s]) {
          const double need = memory_of(slowest, now_.members[slowest].size() + 1).with(1);
          if (need > static_cast<double>(devices_[d].memory.value())) continue;
          const double after = std::min(rates[s] - throughput(d, s), rates[slowest] + throughput(d, slowest));
          if (after <= best * (1 + 1e-9)) continue;
          best = after;
          from = s;
          chosen = d;
        }
      }
      if (chosen == devices_.size()) return;
      std::erase(now_.members[from], chosen);
      now_.members[slowest].push_back(chosen);
      if (!fits()) {  // the stage that it left has larger shards now
        std::erase(now_.members[slowest], chosen);
        now_.members[from].push_back(chosen);
        return;
      }
    }
  }

  [[nodiscard]] StepCost cost_of(const SwarmLayout& layout) const {
    const std::vector<std::int64_t> micro_batches = split_batch(workload_.batch, layout.micro_batch);
    const std::size_t stages = layout.members.size();
    std::vector<RoutedDevice> replicas;
    std::vector<double> boundaries;
    for (std::size_t s = 0; s < stages; ++s) {
      const std::size_t first = layout.cuts[s], last = layout.cuts[s + 1];
      const double forward = workload_.forward_flops(first, last);
      const double backward = workload_.backward_flops(first, last) + (layout.recompute ? forward : 0);
      const StageMemory memory = memory_of(s, layout.members[s].size());
      if (s + 1 < stages) boundaries.push_back(boundary(s));
      for (const std::size_t d : layout.members[s]) {
        const double rate = devices_[d].compute.value();
        const std::int64_t room = memory.fit(static_cast<double>(devices_[d].memory.value()),
                                             static_cast<std::int64_t>(micro_batches.size()));
        replicas.push_back({d, s, forward / rate, backward / rate, std::max<std::int64_t>(1, room)});
      }
    }
    const std::vector<RoutedTimes> times = run_routed(network_, replicas, boundaries, micro_batches, layout.routing);
    StepCost cost;
    cost.usage.resize(network_.size());
    std::vector<double> quiet_s(stages, 0);
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      sched::Usage& used = cost.usage[replicas[r].device];
      used.compute += Seconds(times[r].compute_s);
      used.up += Seconds(times[r].up_s);
      used.down += Seconds(times[r].down_s);
      used.bytes_up += Bytes(std::llround(times[r].bytes_up));
      used.bytes_down += Bytes(std::llround(times[r].bytes_down));
      const std::size_t s = replicas[r].stage;
      used.memory_peak = Bytes(std::llround(memory_of(s, layout.members[s].size()).with(times[r].most_in_flight)));
      quiet_s[s] = std::max(quiet_s[s], times[r].quiet_s);
    }
    double ends_s = 0;  // when both ends have reduced their gradients, and their updates
    for (std::size_t s = 0; s < stages; ++s) {
      const std::vector<std::size_t>& members = layout.members[s];
      const auto parameters = static_cast<double>(workload_.parameters(layout.cuts[s], layout.cuts[s + 1]));
      const CollectiveCost reduced = reduction(layout, s);
      charge(reduced, members, cost.usage);
      double update_s = 0;
      for (const std::size_t d : members) {
        const double time_s = Workload::kUpdateFlops * parameters / devices_[d].compute.value();
        cost.usage[d].compute += Seconds(time_s);
        update_s = std::max(update_s, time_s);
      }
      const double end_s = quiet_s[s] + reduced.time_s + update_s;
      cost.time_s = std::max(cost.time_s, end_s);
      if (s == 0 || s + 1 == stages) ends_s = std::max(ends_s, end_s);
    }
    if (stages > 1 && workload_.tied_parameters > 0) {
      const auto bytes = static_cast<double>(workload_.tied_parameters * workload_.element);
      cost.time_s = std::max(cost.time_s, ends_s + charge_exchange_between(network_, layout.members.front(),
                                                                           layout.members.back(), bytes, cost.usage));
    }
    return cost;
  }

  std::vector<fleet::DeviceProfile> declared_, devices_;
  Network network_;
  const Workload& workload_;
  FastestLinks declared_links_, links_;
  SwarmLayout original_, now_;
  bool copies_;            // shares of state are kept twice
  double boundary_bytes_;  // of an element under way; scales of quantized ones are granted
};

// The layout whose step is shortest.
class SwarmSearch {
 public:
  SwarmSearch(const StudyInput& study, const Workload& workload)
      : study_(study), workload_(workload), links_(fastest_links(study)) {
    const std::size_t most = std::min(workload.units.size(), study.devices.size());
    for (std::size_t stages = 1; stages <= most; ++stages) cuts_.push_back(cut_evenly(workload, stages));
  }

  [[nodiscard]] const FastestLinks& links() const { return links_; }

  /// With at least so many replicas in every stage. Not found where nothing fits.
  SwarmLayout run(std::size_t replicas) {
    replicas_ = replicas;
    best_ = {};
    shortest_s_ = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> devices = by_link(study_);
    for (const std::size_t d : devices) try_layouts({d});  // alone, links do not matter
    std::vector<std::size_t> counts;
    for (std::size_t count = devices.size(); count > 1; count = fewer(count)) counts.push_back(count);
    for (const std::size_t count : counts | std::views::reverse) {  // what few can do spares trials of many
      try_layouts({devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count)});
      if (study_.progress) study_.progress(fmt::format("swarm: {} devices, best {:.4g} s", count, shortest_s_));
    }
    if (best_.found()) exchange();
    return std::move(best_);
  }

 private:
  // Every number of stages, with and without recomputation, and either routing.
  void try_layouts(const std::vector<std::size_t>& devices) {
    const std::size_t most = std::min(cuts_.size(), devices.size() / replicas_);
    for (std::size_t stages = 1; stages <= most; ++stages) {
      for (const bool recompute : {false, true}) {
        for (const Routing routing : {Routing::by_all_resources, Routing::by_forward_pass}) {
          if (stages < devices.size() || routing == Routing::by_all_resources)
            try_micro_batches(devices, stages, recompute, routing);
        }
      }
    }
  }

  // In a stage with few replicas it matters which they are: two devices of different stages take each other's place
  // where that makes the step shorter, until no two do. In small fleets only, since each trial is a step.
  void exchange() {
    constexpr std::size_t kFewDevices = 16;
    std::size_t used = 0;
    for (const std::vector<std::size_t>& stage : best_.members) used += stage.size();
    for (bool better = used <= kFewDevices; better;) {
      better = false;
      for (std::size_t s = 0; s < best_.members.size() && !better; ++s) {
        for (std::size_t t = s + 1; t < best_.members.size() && !better; ++t) better = exchange_between_stages(s, t);
      }
    }
  }

  bool exchange_between_stages(std::size_t s, std::size_t t) {
    for (std::size_t i = 0; i < best_.members[s].size(); ++i) {
      for (std::size_t j = 0; j < best_.members[t].size(); ++j) {
        SwarmLayout layout = best_;
        std::swap(layout.members[s][i], layout.members[t][j]);
        const SwarmPlacement placement(study_, workload_, links_, layout);
        if (!placement.fits()) continue;
        const double step_s = placement.step().time_s;
        if (step_s >= shortest_s_ * (1 - 1e-9)) continue;
        shortest_s_ = step_s;
        best_ = std::move(layout);
        return true;
      }
    }
    return false;
  }

  // Powers of two.
  void try_micro_batches(const std::vector<std::size_t>& devices, std::size_t stages, bool recompute, Routing routing) {
    double shortest_here_s = std::numeric_limits<double>::infinity();
    for (std::int64_t micro_batch = 1; micro_batch <= study_.batch; micro_batch *= 2) {
      SwarmLayout layout = deal(devices, stages, micro_batch, recompute);
      if (!layout.found()) break;
      layout.routing = routing;
      const SwarmPlacement placement(study_, workload_, links_, layout);
      if (placement.least_s() > shortest_s_ || placement.fewest_replicas() < replicas_) break;
      const double step_s = placement.step().time_s;
      if (step_s < shortest_s_) {
        shortest_s_ = step_s;
        best_ = std::move(layout);
      }
      if (step_s > 1.02 * shortest_here_s) break;  // larger ones only lengthen the ramps
      shortest_here_s = std::min(shortest_here_s, step_s);
    }
  }

  // Devices with least memory first, each to the slowest of the stages that it holds. The first device of a stage must
  // hold it with the shards that `devices / stages` replicas leave; a layout in which a device does not fit is none.
  [[nodiscard]] SwarmLayout deal(const std::vector<std::size_t>& devices, std::size_t stages, std::int64_t micro_batch,
                                 bool recompute) const {
    SwarmLayout layout{cuts_[stages - 1], std::vector<std::vector<std::size_t>>(stages), micro_batch, recompute};
    const std::int64_t replicas = sharing_of(study_, devices.size() / stages);
    std::vector<double> need, rates(stages, 0);
    for (std::size_t s = 0; s < stages; ++s) {
      need.push_back(
          stage_memory(workload_, layout.cuts[s], layout.cuts[s + 1], micro_batch, recompute, replicas).with(1));
    }
    std::vector<std::size_t> order = devices;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(study_.devices[a].memory, a) < std::pair(study_.devices[b].memory, b);
    });
    const SwarmPlacement scale(study_, workload_, links_, layout);
    for (const std::size_t d : order) {
      std::size_t slowest = stages;
      for (std::size_t s = 0; s < stages; ++s) {
        if (need[s] > static_cast<double>(study_.devices[d].memory.value())) continue;
        if (slowest == stages || rates[s] < rates[slowest]) slowest = s;
      }
      if (slowest == stages) continue;
      layout.members[slowest].push_back(d);
      rates[slowest] += scale.throughput(d, slowest);
    }
    const bool complete = std::none_of(rates.begin(), rates.end(), [](double rate) { return rate == 0; });
    if (!complete || !SwarmPlacement(study_, workload_, links_, layout).fits()) return {};
    return layout;
  }

  const StudyInput& study_;
  const Workload& workload_;
  FastestLinks links_;
  std::vector<std::vector<std::size_t>> cuts_;  // into 1, 2, ... stages
  std::size_t replicas_ = 1;                    // of a stage, at least
  SwarmLayout best_;
  double shortest_s_ = std::numeric_limits<double>::infinity();
};

class Swarm final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "swarm"; }
  [[nodiscard]] std::string summary() const override {
    return "stages of any number of replicas, micro-batches routed to whichever is free (SWARM)";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const auto workload =
        std::make_shared<const Workload>(describe_workload(study.model, study.batch, study.wire, Granularity::halves));
    SwarmSearch search(study, *workload);
    std::vector<PlacedLayout> candidates;
    // Where devices may be lost also with two replicas of each stage, so that one loss takes no state along.
    for (const std::size_t replicas : {1, 2}) {
      if (replicas > 1 && !may_lose_devices(study)) break;
      SwarmLayout layout = search.run(replicas);
      if (!layout.found()) break;
      auto placement = std::make_unique<SwarmPlacement>(study, *workload, search.links(), std::move(layout));
      std::string text = placement->describe();
      candidates.push_back({std::move(text), workload, std::move(placement)});
    }
    if (candidates.empty()) report.why = why_not(study, *workload);
    return candidates;
  }

  static std::string why_not(const StudyInput& study, const Workload& workload) {
    double need = 0;
    for (std::size_t u = 0; u < workload.units.size(); ++u) {
      need =
          std::max(need, stage_memory(workload, u, u + 1, 1, true,
                                      std::max<std::int64_t>(1, std::ssize(study.devices) / std::ssize(workload.units)))
                             .with(1));
    }
    return fmt::format(
        "a stage of one unit takes up to {} on a device; the largest has {}, and {} devices "
        "must fill {} stages or fewer",
        show_bytes(need), show_bytes(memory_of_fleet(study).largest), study.devices.size(), workload.units.size());
  }
};

}  // namespace

std::unique_ptr<System> make_swarm() { return std::make_unique<Swarm>(); }

}  // namespace cleave::rivals
