// cloud-gpu: n GPUs of a stated peak, model FLOP utilisation and memory. They are no devices of the fleet.
//
//   step = FLOP of the model / (n peak utilisation)
// Where weights, gradients and moments do not fit the GPUs, they lie in the host's memory and stream through the host
// link, layer by layer, under the computation, and the host updates (ZeRO-Infinity, Rajbhandari et al. 2021;
// DeepSpeed's ZeRO-Offload, Ren et al. 2021): (gradients leave the other way at the same time; weights come in once
// forward and once backward)
//   step = max(compute, passes 2 weights / host link) + update at the host's memory bandwidth
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "cleave/base/show.hpp"
#include "cleave/rivals/system.hpp"
#include "workload.hpp"

namespace cleave::rivals {

namespace {

/// Bytes that AdamW moves per parameter: value, gradient and two moments read, value and moments written, all fp32.
constexpr double kUpdateTraffic = 28;

class CloudGpu final : public System {
 public:
  [[nodiscard]] std::string name() const override { return "cloud-gpu"; }
  [[nodiscard]] std::string summary() const override { return "GPUs of a data centre; no devices of the fleet"; }
  [[nodiscard]] bool uses_peer_links() const override { return false; }

 private:
  void carry_out(const StudyInput& study, const std::function<Seconds()>& /*elapsed*/,
                 SystemReport& report) const override {
    const Workload w = describe_workload(study.model, study.batch, study.wire);
    const GpuOptions& gpu = study.gpu;
    const auto count = static_cast<double>(gpu.count);
    const std::size_t units = w.units.size();
    report.devices = report.devices_used = gpu.count;

    const auto parameters = static_cast<double>(w.total_parameters());
    const double state = parameters * Workload::kStateBytes, memory = count * static_cast<double>(gpu.memory.value());
    const double per_sequence = w.input_bytes(0, units) + w.largest_kept_bytes(0, units);
    const double compute_s = w.step_flops() / (count * gpu.peak.value() * gpu.utilisation);
    double step_s = compute_s, resident = state + per_sequence * count;
    if (resident > memory) {
      double layer = 0;  // weights and gradients of two layers at once, the one at work and the one on its way
      for (const Unit& unit : w.units) layer = std::max(layer, static_cast<double>(unit.parameters));
      const double streaming = count * 4 * layer * static_cast<double>(w.element);
      const double fit = std::floor((memory - streaming) / per_sequence);
      if (fit < 1 || state > static_cast<double>(gpu.host_memory.value())) {
        report.feasible = false;
        report.why =
            fmt::format("weights, gradients and moments take {}; {} GPU{} {}, the host {}", show_bytes(state),
                        gpu.count, gpu.count == 1 ? " has" : "s have", show_bytes(memory), show_bytes(gpu.host_memory));
        return;
      }
      const double passes = std::ceil(static_cast<double>(w.batch) / fit);
      const double streamed = passes * 2 * parameters * static_cast<double>(w.element) / count;
      step_s = std::max(compute_s, streamed / gpu.host_link.value()) +
               kUpdateTraffic * parameters / study.server().memory_bandwidth.value();
      resident = std::min(memory, streaming + per_sequence * std::min(fit, static_cast<double>(w.batch)));
      report.figures = {{"host_link_bytes", streamed * count}};
      report.layout = fmt::format("{} GPU{}, state in the host's memory, {:.0f} pass{}", gpu.count,
                                  gpu.count == 1 ? "" : "s", passes, passes == 1 ? "" : "es");
    } else {
      report.layout = fmt::format("{} GPU{}, state in their memory", gpu.count, gpu.count == 1 ? "" : "s");
    }
    report.step = Seconds(step_s);
    report.compute = report.lower_bound = Seconds(compute_s);
    report.device_memory_max = Bytes(std::llround(resident / count));
    report.energy = gpu.power * count * report.step;
  }
};

}  // namespace

std::unique_ptr<System> make_cloud_gpu() { return std::make_unique<CloudGpu>(); }

}  // namespace cleave::rivals
