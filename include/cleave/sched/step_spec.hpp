// StepSpec: one training step and the fleet that it runs on, as one value.
//
// The input's reader fills it once. The trainer, the memory forecast, `plan`, `simulate` and the rivals all get this
// value, so none of them can work on another step than the others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

enum class Layout : std::uint8_t { automatic, tiles, stages };

/// What the input says about the layout.
struct LayoutRequest {
  Layout layout = Layout::automatic;
  std::int64_t row_groups = 0;    ///< in tiles; 0: whichever number is quickest
  bool as_trained = false;        ///< choose as `train` does: for devices that stay
  std::int64_t chunk_tokens = 0;  ///< StageOptions::chunk
  plan::OwnerPlaces owners = plan::OwnerPlaces::automatic;
  bool preload = true;      ///< StageOptions::preload
  bool rounds = true;       ///< StageOptions::rounds
  bool server_sums = true;  ///< StageSchedulerOptions::server_sums
};

/// See the file comment.
struct StepSpec {
  model::ModelConfig model;
  std::int64_t batch = 8;           ///< sequences
  bool clip = true;                 ///< the update waits for the global gradient norm
  std::vector<std::string> freeze;  ///< glob patterns of parameter names that are not trained
  LayoutRequest layout;
  bool asynchronous = true;         ///< SchedulerOptions::asynchronous
  plan::PlanOptions plan;           ///< plan.server is the server
  DType wire = DType::f32;          ///< type of operands and results on the wire
  std::optional<DType> boundary{};  ///< model::StepOptions::boundary
  double paired = 0;                ///< share of tasklets that are also given to a second device
  bool pairs_in_tiles = true;       ///< false: `paired` holds in stages only; tiles are checked without a second device
  std::vector<fleet::DeviceProfile> devices;
  fleet::ChurnTrace churn;  ///< of the devices, in order of time
  std::uint64_t seed = 42;  ///< of jitter

  [[nodiscard]] const fleet::ServerProfile& server() const { return plan.server; }
  [[nodiscard]] double paired_in_tiles() const { return pairs_in_tiles ? paired : 0.0; }
};

/// Options of the training step's graph with so many row groups.
[[nodiscard]] model::StepOptions graph_options(const StepSpec& spec, std::int64_t row_groups);

/// The graph of the training step in tiles: in as many row groups as `spec.layout` asks for, and in one where it leaves
/// that open. Requires: as model::build_step().
[[nodiscard]] model::StepGraph training_graph(const StepSpec& spec);

/// The options with which the step is scheduled in tiles.
[[nodiscard]] SchedulerOptions scheduler_options(const StepSpec& spec);

/// Lower bound of the step on these devices in any layout with all state on the server (plan::floor_of()). Zero without
/// devices, since the server then computes everything itself. Requires: as model::build_step().
[[nodiscard]] Seconds step_floor(const StepSpec& spec, std::span<const plan::DeviceState> devices);

/// The states of devices that are idle: declared rates, no resource busy.
[[nodiscard]] std::vector<plan::DeviceState> idle_devices(const std::vector<fleet::DeviceProfile>& devices);

}  // namespace cleave::sched
