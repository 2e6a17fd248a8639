// fusionllm: one pipeline over the best-connected devices, boundary tensors compressed where links are slow.
//
// Units are cut by the devices' speed. A link that would take longer for a sequence than the slowest stage computes
// keeps only the largest values of activations and of their gradients (top-k, values with 4-byte indices), just so many
// that it does not, and no fewer than one in `kMostCompression`. Fast links carry everything. What is left out changes
// the training: another algorithm, whose loss must be read beside its time. `figures.uncompressed_s` is the same
// pipeline without. Source: Tang et al. 2024 (FusionLLM, arXiv 2410.12707): cuts by workload, AdaTopK by link.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "pipeline_grid.hpp"
#include "speed_cuts.hpp"

namespace cleave::rivals {

namespace {

/// The strongest compression that is used: one value in a hundred.
constexpr double kMostCompression = 100;
/// Bytes of an index beside each value that is kept.
constexpr double kIndexBytes = 4;
/// Cuts and compression depend on each other: rounds of one after the other.
constexpr int kRounds = 3;

struct FusionChain {
  std::vector<std::size_t> devices;
  PipelineSchedule schedule;
  double step_s = std::numeric_limits<double>::infinity();
};

// For each hop the share of bytes that travels.
std::vector<double> compress(const StudyInput& study, const Workload& workload, const Network& network,
                             const std::vector<std::size_t>& devices, const std::vector<std::size_t>& cuts) {
  double slowest_s = 0;
  for (std::size_t s = 0; s < devices.size(); ++s) {
    const double flops = workload.forward_flops(cuts[s], cuts[s + 1]) + workload.backward_flops(cuts[s], cuts[s + 1]);
    slowest_s = std::max(slowest_s, flops / study.devices[devices[s]].compute.value());
  }
  const auto element = static_cast<double>(workload.element);
  const double each = (element + kIndexBytes) / element;  // bytes of a value that is kept, beside one that just travels
  std::vector<double> shares;
  for (std::size_t s = 0; s + 1 < devices.size(); ++s) {
    // A device's links carry two boundaries, one on either side.
    const double bytes = 2 * workload.units[cuts[s + 1] - 1].output_bytes;
    const double rate = std::min(network.rate(devices[s], devices[s + 1]), network.rate(devices[s + 1], devices[s]));
    const double allowed = slowest_s * rate / bytes;
    shares.push_back(allowed >= 1 ? 1.0 : std::min(1.0, std::max(allowed, each / kMostCompression)));
  }
  return shares;
}

class FusionLlm final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "fusionllm"; }
  [[nodiscard]] std::string summary() const override {
    return "one pipeline, boundaries compressed on slow links (FusionLLM): another algorithm";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire, Granularity::halves);
    const Network network(study.devices, study.links);
    const std::vector<std::size_t> order = by_link(study);
    FusionChain best;
    const std::size_t most = std::min(order.size(), workload.units.size());
    for (std::size_t stages = 1; stages <= most; ++stages) {
      const std::vector<std::size_t> devices(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(stages));
      try_schedules(study, workload, network, devices, best);
    }
    for (const std::size_t d : order) try_schedules(study, workload, network, {d}, best);  // alone, links do not matter
    if (best.devices.empty()) {
      report.why = fmt::format(
          "a pipeline of up to {} stages does not fit the best-connected devices: the model with "
          "gradients and moments takes {}",
          most, show_bytes(workload.state_bytes()));
      return {};
    }
    double least = 1;
    for (const double share : best.schedule.hop_share) least = std::min(least, share);
    std::string layout = fmt::format(
        "{} stages, micro-batches of {}{}, boundaries down to {:.3f} of their bytes; another "
        "algorithm",
        best.devices.size(), best.schedule.micro_batch, best.schedule.recompute ? ", layers computed again" : "",
        least);
    PipelineSchedule plain = best.schedule;
    plain.hop_share.clear();
    report.figures = {{"uncompressed_s", PipelineGrid(study, workload, {best.devices}, plain).step().time_s},
                      {"least_share_of_boundary", least}};
    return one_layout(std::move(layout),
                      std::make_unique<PipelineGrid>(study, workload, Grid{best.devices}, best.schedule));
  }

  // The best cuts and shares for a micro-batch; none where the model does not fit.
  static std::optional<PipelineSchedule> schedule_of(const StudyInput& study, const Workload& workload,
                                                     const Network& network, const std::vector<std::size_t>& devices,
                                                     std::int64_t micro_batch, bool recompute) {
    PipelineSchedule schedule{{}, micro_batch, recompute};
    for (int round = 0; round < kRounds; ++round) {
      const std::optional<std::vector<std::size_t>> cuts =
          cut_by_speed(workload, study.devices, devices, schedule.hop_share, micro_batch, recompute);
      if (!cuts) return std::nullopt;
      schedule.cuts = *cuts;
      schedule.hop_share = compress(study, workload, network, devices, schedule.cuts);
    }
    return schedule;
  }

  static void try_schedules(const StudyInput& study, const Workload& workload, const Network& network,
                            const std::vector<std::size_t>& devices, FusionChain& best) {
    for (const bool recompute : {false, true}) {
      for (std::int64_t micro_batch = 1; micro_batch <= workload.batch; micro_batch *= 2) {
        std::optional<PipelineSchedule> schedule =
            schedule_of(study, workload, network, devices, micro_batch, recompute);
        if (!schedule) break;
        const PipelineGrid grid(study, workload, {devices}, *schedule);
        if (!grid.fits()) break;
        const double step_s = grid.step().time_s;
        if (step_s < best.step_s) best = {devices, std::move(*schedule), step_s};
      }
    }
  }
};

}  // namespace

std::unique_ptr<System> make_fusionllm() { return std::make_unique<FusionLlm>(); }

}  // namespace cleave::rivals
