// confidant: one pipeline over unlike devices, its cuts following their measured speed (Confidant, FTPipeHD).
//
// Stages are single devices. Units are cut so that the slowest stage is as fast as possible, its compute and its links
// alike; when a device slows down or is lost they are cut again. Every stage's state is copied to the next device (the
// last one's to the first), so that neighbours must be lost together for state to be gone; units that move are fetched
// at once, and the batch starts again, since gradients summed so far stay behind. `figures.even_cuts_s` is the same
// pipeline with cuts that take all devices for alike. Sources: Chen et al. 2023 (FTPipeHD, arXiv 2110.02781), Chen et
// al. 2023 (Confidant, arXiv 2311.13381).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "pipeline_grid.hpp"
#include "placement.hpp"
#include "speed_cuts.hpp"

namespace cleave::rivals {

namespace {

struct ConfidantChain {
  std::vector<std::size_t> devices;  ///< one a stage, in order
  PipelineSchedule schedule;
  double step_s = std::numeric_limits<double>::infinity();
  [[nodiscard]] bool found() const { return !devices.empty(); }
};

// The best pipeline over these devices in this order: micro-batches are powers of two.
ConfidantChain best_chain(const StudyInput& study, const Workload& workload, const std::vector<std::size_t>& devices) {
  ConfidantChain best;
  for (const bool recompute : {false, true}) {
    for (std::int64_t micro_batch = 1; micro_batch <= workload.batch; micro_batch *= 2) {
      const std::optional<std::vector<std::size_t>> cuts =
          cut_by_speed(workload, study.devices, devices, {}, micro_batch, recompute);
      if (!cuts) break;
      PipelineSchedule schedule{*cuts, micro_batch, recompute};
      const PipelineGrid grid(study, workload, {devices}, schedule);
      if (!grid.fits()) break;
      const double step_s = grid.step().time_s;
      if (step_s < best.step_s) best = {devices, std::move(schedule), step_s};
    }
  }
  return best;
}

class ChainPlacement final : public Placement {
 public:
  ChainPlacement(const StudyInput& study, const Workload& workload, ConfidantChain chain)
      : study_(study),
        declared_(study.devices),
        workload_(workload),
        original_(chain.devices),
        chain_(std::move(chain)) {}

  [[nodiscard]] StepCost step() const override {
    return PipelineGrid(study_, workload_, {chain_.devices}, chain_.schedule).step();
  }
  [[nodiscard]] bool uses(std::size_t device) const override {
    return std::find(chain_.devices.begin(), chain_.devices.end(), device) != chain_.devices.end();
  }

  Remedy lose(std::span<const std::size_t> devices, double progress) override {
    const double before_s = step().time_s;
    const auto lost = [&](std::size_t d) { return std::find(devices.begin(), devices.end(), d) != devices.end(); };
    const std::size_t stages = chain_.devices.size();
    Remedy remedy;
    for (std::size_t s = 0; s < stages; ++s) {
      if (!lost(chain_.devices[s]) || !lost(chain_.devices[(s + 1) % stages])) continue;
      remedy.survives = false;
      remedy.why = "a stage and its backup were lost together";
      return remedy;
    }
    for (const std::size_t d : devices) gone_.push_back(d);
    ConfidantChain after = cut_again();
    if (!after.found()) {
      remedy.survives = false;
      remedy.why = "the devices that remain cannot hold the model";
      return remedy;
    }
    const double moving_s = migration_s(after);
    chain_ = std::move(after);
    remedy.added_s = moving_s + step().time_s - before_s * (1 - progress);
    return remedy;
  }

  void restore(std::size_t device) override {
    std::erase(gone_, device);
    if (ConfidantChain after = cut_again(); after.found()) chain_ = std::move(after);
  }

  void slow(std::size_t device, double factor) override {
    study_.devices[device] = fleet::slowed(declared_[device], factor);
    if (ConfidantChain after = cut_again(); after.found()) chain_ = std::move(after);
  }

 private:
  [[nodiscard]] ConfidantChain cut_again() const {
    std::vector<std::size_t> left = original_;
    std::erase_if(left, [&](std::size_t d) { return std::find(gone_.begin(), gone_.end(), d) != gone_.end(); });
    return left.empty() ? ConfidantChain{} : best_chain(study_, workload_, left);
  }

  // All units that change their device, fetched at once over the slower of the two links.
  [[nodiscard]] double migration_s(const ConfidantChain& after) const {
    double longest_s = 0;
    for (std::size_t s = 0; s < after.devices.size(); ++s) {
      const std::size_t device = after.devices[s];
      std::int64_t parameters = 0;
      for (std::size_t u = after.schedule.cuts[s]; u < after.schedule.cuts[s + 1]; ++u) {
        if (holder_of(u) != device) parameters += workload_.units[u].parameters;
      }
      const auto bytes = static_cast<double>(parameters * workload_.moved_bytes());
      longest_s = std::max(longest_s, bytes / study_.devices[device].downlink.value());
      longest_s = std::max(longest_s, bytes / slowest_uplink(after));
    }
    return longest_s;
  }
  [[nodiscard]] std::size_t holder_of(std::size_t unit) const {
    std::size_t s = 0;
    while (unit >= chain_.schedule.cuts[s + 1]) ++s;
    return chain_.devices[s];
  }
  [[nodiscard]] double slowest_uplink(const ConfidantChain& chain) const {
    double slowest = std::numeric_limits<double>::infinity();
    for (const std::size_t d : chain.devices) slowest = std::min(slowest, study_.devices[d].uplink.value());
    return slowest;
  }

  StudyInput study_;  // with present rates
  std::vector<fleet::DeviceProfile> declared_;
  const Workload& workload_;
  std::vector<std::size_t> original_, gone_;
  ConfidantChain chain_;
};

class Confidant final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "confidant"; }
  [[nodiscard]] std::string summary() const override {
    return "one pipeline whose cuts follow the devices' speed (Confidant, FTPipeHD)";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const auto shared =
        std::make_shared<const Workload>(describe_workload(study.model, study.batch, study.wire, Granularity::halves));
    const Workload& workload = *shared;
    const std::vector<std::size_t> order = by_link(study);
    ConfidantChain best;
    const std::size_t most = std::min(order.size(), workload.units.size());
    for (std::size_t stages = 1; stages <= most; ++stages) {
      const std::vector<std::size_t> devices(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(stages));
      ConfidantChain chain = best_chain(study, workload, devices);
      if (chain.step_s < best.step_s) best = std::move(chain);
    }
    for (const std::size_t d : order) {  // alone, links do not matter
      ConfidantChain chain = best_chain(study, workload, {d});
      if (chain.step_s < best.step_s) best = std::move(chain);
    }
    if (!best.found()) {
      report.why = fmt::format(
          "a pipeline of {} stages, one unit each, does not fit the best-connected devices: the "
          "model with gradients and moments takes {}",
          most, show_bytes(workload.state_bytes()));
      return {};
    }
    std::string layout = fmt::format("{} stages, micro-batches of {}{}", best.devices.size(), best.schedule.micro_batch,
                                     best.schedule.recompute ? ", layers computed again" : "");
    PipelineSchedule even = best.schedule;
    even.cuts = cut_evenly(workload, best.devices.size());
    const PipelineGrid without(study, workload, {best.devices}, even);
    if (without.fits()) report.figures.emplace_back("even_cuts_s", without.step().time_s);
    return one_layout(std::move(layout), std::make_unique<ChainPlacement>(study, workload, std::move(best)), shared);
  }
};

}  // namespace

std::unique_ptr<System> make_confidant() { return std::make_unique<Confidant>(); }

}  // namespace cleave::rivals
