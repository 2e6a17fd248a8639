// System: one way of training a model on a fleet, costed under the one accounting of docs/cost_model.md.
//
// `simulate` and the studies of bench/evidence call these; registry.hpp lists them. Whatever the system, a device's
// downlink, processor and uplink are serial resources that work at the same time, every message pays a header and a
// latency, and a device's memory is a hard limit. Systems whose devices send to each other use links i -> j of rate
// min(uplink of i, downlink of j) and latency latency_i + latency_j, or the study's link matrix. docs/rivals.md says
// what each system is, from which source, and what was assumed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/fleet/links.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/observer.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/step_spec.hpp"

namespace cleave::rivals {

/// Settings of DTFM's scheduler; the defaults are those of its authors' code.
struct DtfmOptions {
  std::int64_t population = 100;
  std::int64_t trials = 4900;  ///< scaled down where they would take minutes (docs/rivals.md)
  std::int64_t stages = 0;     ///< pipeline stages; 0: whichever number gives the shortest step
  Bytes gradient{0};           ///< exchanged per device in its objective; 0: from the model and the stages
  Bytes activation{0};         ///< sent per hop and batch in its objective; 0: from the model and the pipelines
  std::uint64_t seed = 0;
  bool polish = true;  ///< where pairs are measured: polish the best partitions by swaps, beyond the authors' code
};

/// Copies that train on their own between averages (local-steps).
struct LocalStepOptions {
  std::int64_t interval = 500;  ///< steps from one average to the next
};

/// Boundary tensors of swarm.
struct SwarmOptions {
  std::int64_t boundary_bits = 8;  ///< of an element under way; as published
};

/// GPUs in a data centre. Defaults: one A100-80GB in a host with 1 TB, PCIe 4.0 x16.
struct GpuOptions {
  std::int64_t count = 1;
  FlopsPerSecond peak{312e12};
  double utilisation = 0.45;  ///< model FLOP utilisation: what its own overheads leave of the peak
  Bytes memory{80'000'000'000};
  Bytes host_memory{1'000'000'000'000};  ///< takes weights, gradients and moments that the GPUs cannot hold
  BytesPerSecond host_link{25e9};        ///< per GPU and direction
  Watts power{400};                      ///< per GPU, while the step runs
};

/// Devices lost in mid-step, the same ones for every system as far as it uses them.
struct LossOptions {
  std::int64_t devices = 0;  ///< how many are lost at once
  double progress = 0.5;     ///< when, as a share of the undisturbed step
  std::uint64_t seed = 0;    ///< of which ones
};

/// How devices of a fleet reach each other.
enum class PeerLinks : std::uint8_t {
  direct,   ///< over links of their own
  relayed,  ///< through the server's interface, as behind NAT
  none,     ///< not at all: each reaches the server only
};

/// The input of a comparison: the step (all systems use its model, batch, wire, devices and server; the rest of it is
/// for cleave), and settings of the comparison. Churn begins with the first step.
struct StudyInput : sched::StepSpec {
  fleet::LinkMatrix links;  ///< between devices; empty: from their profiles
  PeerLinks peer_links = PeerLinks::direct;
  std::int64_t steps = 1;  ///< steps that are run one after another under the churn
  LossOptions loss;        ///< ignored where there is churn
  Seconds detection{0.2};  ///< time from a loss until the other devices know of it
  DtfmOptions dtfm;
  LocalStepOptions local_steps;
  SwarmOptions swarm;
  GpuOptions gpu;
  std::function<void(const std::string&)> progress;  ///< called now and then with a line of text; may be empty
  /// Observers of cleave's and cleave-paper's own run without losses; each may be empty. step_begins gets the number of
  /// the step, from 0; step_done gets the usage since the first step.
  sched::Observer* observer = nullptr;
  std::function<void(std::int64_t)> step_begins;
  std::function<void(const sched::StepReport&, std::span<const sched::Usage>)> step_done;
};

/// Figures of one of several steps.
struct StepFigures {
  Seconds time, recovery, planning;
  std::int64_t present = 0;  ///< devices at the end of the step
  std::int64_t devices = 0, tasklets = 0, lost = 0, redone = 0, copies = 0, late = 0, server_sums = 0, witnesses = 0;
};

/// The result of a system: the fields of `simulate`'s JSON (docs/interface.md). With several steps: `step`,
/// `recovery` and `energy` are means over them, and of cleave `server_kernels`; `planning` is that of all; the others
/// are those of the first step, of a rival those of a step that nothing disturbs.
struct SystemReport {
  std::string system;
  bool feasible = true;
  std::string why;  ///< where it is not feasible: what is missing
  std::int64_t devices = 0, devices_used = 0;
  Seconds step, lower_bound;
  Seconds floor;    ///< cleave, cleave-paper: lower bound for any layout with all state on the server
  Seconds compute;  ///< busy time of the processor of the device that computes longest
  Bytes bytes_down, bytes_up;
  Seconds server_out, server_in;
  Bytes device_bytes_down_max, device_memory_max;
  Seconds recovery;        ///< time added by losses, detection included
  Joules energy;           ///< of the devices, or GPUs
  Seconds server_kernels;  ///< busy time of the server's processor
  Joules server_energy;
  Seconds planning, wall;
  std::string layout;                                   ///< the layout that was chosen: "8 stages x 8 pipelines, ..."
  std::vector<std::pair<std::string, double>> figures;  ///< figures of the method's own, such as its objective
  std::optional<plan::StagePlan> stages;                ///< cleave: the plan of the first step, where it is in stages
  std::vector<StepFigures> steps;                       ///< cleave: each step, where there are several
  /// cleave: what each loss cost, with the type of the operation that it hit
  std::vector<std::pair<std::string, sched::Loss>> losses;
};

/// A system of the registry (registry.hpp).
class System {
 public:
  virtual ~System() = default;
  /// The name that --system has for it.
  [[nodiscard]] virtual std::string name() const = 0;
  /// One line for help texts.
  [[nodiscard]] virtual std::string summary() const = 0;
  /// Plans and runs the study. Where the study is impossible, the report has `feasible` false; that is no error.
  [[nodiscard]] SystemReport simulate(const StudyInput& study) const;

  /// True where its devices send to each other; false where they send to the server only, or there are none.
  [[nodiscard]] virtual bool uses_peer_links() const { return true; }

 private:
  /// What simulate() asks of each system. `report` has its name, the size of the fleet and nothing else; `elapsed`
  /// tells the real time since the study began, for `planning`. The caller adds `wall`.
  virtual void carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                         SystemReport& report) const = 0;
};

}  // namespace cleave::rivals
