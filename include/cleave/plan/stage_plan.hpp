// StagePlan: a step in which devices hold weights (docs/stage_layouts.md), as a value.
//
// The model's pieces (model/pieces.hpp) are cut into stages. The weights of a stage lie on its replicas for one step;
// sequences pass through the stages in chunks of tokens, forward from the bottom, backward from the top, by way of the
// server. The gradient of a stage's weights is cut into slices, each with one owner, that sums over all tokens.
// plan_stages() is pure; the scheduler decides at run time which replica takes which sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/model/pieces.hpp"

namespace cleave::plan {

/// The operations of a piece, for a stage that runs in tiles.
struct TiledPiece {
  std::vector<model::Operation> forward, back;
};

/// A training step that is to be laid out in stages.
struct StageWork {
  std::vector<model::Piece> pieces;                         ///< bottom first, the head or its parts last
  std::shared_ptr<const std::vector<TiledPiece>> in_tiles;  ///< for each piece of the graph; null: no tiles
  std::int64_t batch = 0, seq = 0;                          ///< sequences, tokens of each
  DType wire = DType::f32;
  DType boundary = DType::f32;    ///< of rows of the residual stream and its gradient between stages
  bool trains_embeddings = true;  ///< the lowest piece's dX is wanted
  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
};

/// The work of a training step. Boundaries are mxint8 where the graph's are, otherwise of the wire type. Requires: as
/// model::pieces_of().
[[nodiscard]] StageWork stage_work_of(const model::StepGraph& graph, DType wire);

/// The work with its head in `parts` parts, each a piece. A StagePlan numbers the pieces of this work.
/// Requires: as model::head_parts(), or the head is in so many parts already.
[[nodiscard]] StageWork with_head_parts(const StageWork& work, std::int64_t parts);

/// The operations of pieces [first, end) of the forward pass, or with `back` of the backward pass, in a legal order.
/// The pointers are into work.in_tiles. Requires: work.in_tiles is not null; end is at most its size.
[[nodiscard]] std::vector<const model::Operation*> operations_in_tiles(const StageWork& work, std::int64_t first,
                                                                       std::int64_t end, bool back);

/// A device that holds a stage's weights for the step.
struct StageReplica {
  DeviceId device;
  std::int64_t forward_slots = 2, backward_slots = 2;  ///< most open sequences in each direction
  /// Slots of kept sequences. Where there are some, sequences go forward in these and come back to the same replica;
  /// the forward and backward slots serve sequences of lost devices. 0: no sequence is kept; a sequence may go backward
  /// through another replica than forward.
  std::int64_t kept_slots = 0;
  Bytes memory;  ///< weights, packed weights where it keeps sequences, open and kept sequences, one chunk at work
  Bytes held;    ///< operands for its own slices, of each open sequence beyond the least number (slot_bytes())
  bool operator==(const StageReplica&) const = default;
};

/// A stage: pieces [first, end) of the work with the plan's head parts.
struct Stage {
  std::int64_t first = 0, end = 0;
  Bytes weights;  ///< bytes that each replica is sent
  std::vector<StageReplica> replicas;
  std::int64_t round = 0;  ///< number of its round (StagePlan)
  bool tiles = false;      ///< its operations run in tiles over all devices, in a round of its own; no replicas
  /// The least kept_slots of its replicas; 0 without replicas.
  [[nodiscard]] std::int64_t kept_slots() const {
    return replicas.empty() ? 0 : std::ranges::min(replicas, {}, &StageReplica::kept_slots).kept_slots;
  }
  bool operator==(const Stage&) const = default;
};

/// Units [begin, end) of a piece (model::SlicedTensor says which elements they are).
struct PieceSlice {
  std::int64_t piece = 0, begin = 0, end = 0;
  bool operator==(const PieceSlice&) const = default;
};

/// A device that sums the gradient of some slices of one stage. The slices of one owner group cover the stage exactly
/// once. With several owner groups, a sequence is summed by the group of the replica that runs it backward, and the
/// server adds the sums of the groups.
struct GradientOwner {
  DeviceId device;
  std::int64_t stage = 0, group = 0;
  std::vector<PieceSlice> slices;
  bool replica = false;  ///< it is a replica of the stage as well: sequences that it runs are not sent to it again
  Bytes weights;         ///< bytes of weights that it is sent where it is no replica
  Bytes memory;          ///< sums, weights, operands at work
  bool operator==(const GradientOwner&) const = default;
};

/// A layout in stages. Where devices cannot hold all stages at once, the stages are divided into rounds, numbered from
/// the bottom; the stages of one round have the devices to themselves (docs/stage_layouts.md, "Rounds"). All sequences
/// go forward through round after round, both ways through the last round, and backward through the others from the
/// top, for which their weights are sent again. Pieces that no device has room for make stages that run in tiles, each
/// in a round of its own.
struct StagePlan {
  std::int64_t chunk = 0;       ///< tokens of a chunk
  std::int64_t head_parts = 1;  ///< parts of the head; more than 1: the last stages hold one part each
  bool preload = true;          ///< StageOptions::preload
  std::vector<Stage> stages;
  std::vector<GradientOwner> owners;
  std::vector<std::int64_t> groups;  ///< number of owner groups of each stage
  Seconds forecast;                  ///< of the step; once rehearsed (sched), the rehearsal's time
  Seconds chain;  ///< forecast time for all sequences to pass all stages, without gradients and the server's interface
  Bytes bytes_down, bytes_up;  ///< forecast
  [[nodiscard]] std::int64_t rounds() const { return stages.empty() ? 1 : stages.back().round + 1; }
  [[nodiscard]] bool has_tiles() const { return std::ranges::any_of(stages, &Stage::tiles); }
  bool operator==(const StagePlan&) const = default;
};

/// The part of a tensor that belongs to a slice. begin, end: rows (or columns) of the tensor times
/// model::SlicedTensor::width.
struct TensorSlice {
  TensorId tensor;
  std::int64_t begin = 0, end = 0;
  bool cut_rows = false;  ///< the tensor is cut by rows; otherwise by columns
};

/// The parts of a piece's trained tensors that belong to a slice of it.
[[nodiscard]] std::vector<TensorSlice> tensor_slices(const model::Piece& piece, const PieceSlice& slice);

/// Which devices may own slices of a stage's gradient: any (as is quickest), its replicas only, or only devices that
/// are no replicas of it.
enum class OwnerPlaces : std::uint8_t { automatic, replicas, apart };

/// Options of planning. All but the server restrict the search, for baselines: the defaults are the quickest.
struct StageOptions {
  fleet::ServerProfile server;
  /// Tokens of a chunk: a multiple of kChunkTokens, or at least a sequence; 0: the planner chooses.
  std::int64_t chunk = 0;
  OwnerPlaces owners = OwnerPlaces::automatic;
  bool preload = true;    ///< weights are sent as the step begins; false: when the first chunk reaches their stage
  bool rounds = true;     ///< stages may have rounds where memory is short; false: all stages are held at once
  bool tiles = true;      ///< pieces that no device has room for may run in tiles
  bool leave_out = true;  ///< devices may be left out where the step is quicker with fewer
  int threads = 0;        ///< of the planner, as threads_for() has them (base/lookahead.hpp); no plan depends on them
};

/// Tokens of a query block of attention; chunks are multiples of it (docs/numerics.md).
inline constexpr std::int64_t kChunkTokens = kRowBlock;

/// Searches for the layout with the least forecast. None where no layout fits. Deterministic.
/// Complexity: about (devices + pieces) x stages for each of a few dozen candidates; several times that where the
/// server's interface is the bottleneck, since smaller fleets are planned for as well.
[[nodiscard]] std::optional<StagePlan> find_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                                   const StageOptions& options);
/// In fleets of up to this many devices, errors of forecasts are larger than differences between layouts, so the
/// candidates should be rehearsed (sched).
inline constexpr std::size_t kSmallFleet = 128;

/// Some or all devices of a fleet, in the order in which they were given, and a layout for them.
struct StageFleet {
  std::vector<fleet::DeviceProfile> devices;
  StagePlan plan;
};

/// All devices with their layout, and smaller fleets where leaving devices out may make the step quicker, in order of
/// their forecasts. The first one's plan is that of find_stages(). Empty where no layout fits. Deterministic.
[[nodiscard]] std::vector<StageFleet> stage_fleets(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                                   const StageOptions& options);
/// At most `most` different layouts for all devices, for a caller that rehearses them. The first is the layout of
/// find_stages() without StageOptions::leave_out; the others follow in order of their forecasts. Some of the others are
/// cut by what processors can do, for fewer devices, or into stages of equal time; their forecasts include the
/// processors. Empty where no layout fits. Deterministic.
[[nodiscard]] std::vector<StagePlan> stage_candidates(const StageWork& work,
                                                      std::span<const fleet::DeviceProfile> devices,
                                                      const StageOptions& options, std::size_t most);
/// As find_stages(). Errors: InputError where no layout fits; it names the device that lacks least, and how much it
/// lacks.
[[nodiscard]] StagePlan plan_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                    const StageOptions& options);

}  // namespace cleave::plan
