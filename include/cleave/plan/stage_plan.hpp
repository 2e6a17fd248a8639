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

/// Operations of a piece, for where it runs in tiles.
struct TiledPiece {
  std::vector<model::Operation> forward, back;
};

/// What is to be laid out.
struct StageWork {
  std::vector<model::Piece> pieces;                         ///< bottom first, the head last
  std::shared_ptr<const std::vector<TiledPiece>> in_tiles;  ///< of each piece of the graph; may be left out
  std::int64_t batch = 0, seq = 0;                          ///< sequences, tokens of each
  DType wire = DType::f32;
  bool trains_embeddings = true;  ///< the gradient of what the lowest piece reads is wanted
  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
};
/// Requires: as model::pieces_of.
[[nodiscard]] StageWork stage_work_of(const model::StepGraph& graph, DType wire);
/// The same with its head in so many parts, each a piece: what a StagePlan's pieces are counted in.
/// Requires: as model::head_parts, or that the head is in so many parts.
[[nodiscard]] StageWork with_head_parts(const StageWork& work, std::int64_t parts);

/// Operations of pieces [first, end) as they run in tiles, one way, in a legal order. Requires: work.in_tiles.
[[nodiscard]] std::vector<const model::Operation*> operations_in_tiles(const StageWork& work, std::int64_t first,
                                                                       std::int64_t end, bool back);

/// A device that holds a stage's weights. Its memory is reserved for the step and never lent.
struct StageReplica {
  DeviceId device;
  std::int64_t forward_slots = 2, backward_slots = 2;  ///< sequences that it may have open
  /// Sequences of which it keeps what the way forward has made until their gradients are summed. They go forward in
  /// these slots and come back to the same replica; the others are for what comes from lost devices. 0: what the way
  /// back needs is made again, by whichever replica is free.
  std::int64_t kept_slots = 0;
  Bytes memory;  ///< weights, also packed where it keeps sequences, open and kept sequences, one chunk at work
  Bytes held;    ///< of an open sequence beyond the least number: for the sums of its own slices (slot_bytes())
};

/// Pieces [first, end).
struct Stage {
  std::int64_t first = 0, end = 0;
  Bytes weights;  ///< that each replica is sent
  std::vector<StageReplica> replicas;
  std::int64_t round = 0;  ///< of StagePlan
  bool tiles = false;      ///< its operations run in tiles over all devices, in a round of its own: no replicas
  /// The least number of sequences that a replica keeps; 0 where one keeps none.
  [[nodiscard]] std::int64_t kept_slots() const {
    return replicas.empty() ? 0 : std::ranges::min(replicas, {}, &StageReplica::kept_slots).kept_slots;
  }
};

/// Units [begin, end) of a piece (model::SlicedTensor says which elements they are).
struct PieceSlice {
  std::int64_t piece = 0, begin = 0, end = 0;
  bool operator==(const PieceSlice&) const = default;
};

/// A device that sums the gradient of some slices of one stage. Those of one owner group fill the stage's pieces
/// exactly. With several, a sequence is summed by the owner group of the replica that runs it backward, which reads it
/// anyway; their sums are added by the server.
struct GradientOwner {
  DeviceId device;
  std::int64_t stage = 0, group = 0;
  std::vector<PieceSlice> slices;
  bool replica = false;  ///< it is a replica of the stage as well: what it ran itself is not sent to it again
  Bytes weights;         ///< that it is sent because it is not
  Bytes memory;          ///< sums, weights, operands at work
};

/// Where devices cannot hold all stages at once, stages have rounds, from the bottom, and those of one round have all
/// devices to themselves: all sequences go forward through round after round, back from the last one, and then back
/// through the others from the top, whose weights come again for it (docs/stage_layouts.md, "Rounds"). Pieces that no
/// device has room for make stages that run in tiles, each in a round of its own between those of the others.
struct StagePlan {
  std::int64_t chunk = 0;       ///< tokens
  std::int64_t head_parts = 1;  ///< more: the last so many stages hold a part of the vocabulary each
  bool preload = true;          ///< StageOptions::preload
  std::vector<Stage> stages;
  std::vector<GradientOwner> owners;
  std::vector<std::int64_t> groups;  ///< owner groups of each stage
  Seconds forecast;                  ///< of the step; once rehearsed (sched), what the rehearsal took
  Seconds chain;  ///< how long sequences are forecast to take to pass all stages: gradients and the interface aside
  Bytes bytes_down, bytes_up;  ///< forecast
  [[nodiscard]] std::int64_t rounds() const { return stages.empty() ? 1 : stages.back().round + 1; }
  [[nodiscard]] bool has_tiles() const { return std::ranges::any_of(stages, &Stage::tiles); }
};

/// Of StagePlan: what one slice is of a named tensor: elements [begin, end), counted along its cut axis.
struct TensorSlice {
  TensorId tensor;
  std::int64_t begin = 0, end = 0;
  bool cut_rows = false;
};
[[nodiscard]] std::vector<TensorSlice> tensor_slices(const model::Piece& piece, const PieceSlice& slice);

/// Who may own slices of a stage's gradient: whoever is quickest, its replicas, or devices that are none.
enum class OwnerPlaces : std::uint8_t { automatic, replicas, apart };

/// Beside the server, baselines: the defaults are the quickest.
struct StageOptions {
  fleet::ServerProfile server;
  std::int64_t chunk = 0;  ///< tokens; 0: planned. Otherwise a multiple of kChunkTokens, or at least a sequence
  OwnerPlaces owners = OwnerPlaces::automatic;
  bool preload = true;  ///< weights of all stages go out first; false: when the first chunk reaches their stage
  bool rounds = true;   ///< where memory is short, stages may have rounds; false: all are held at once
  bool tiles = true;    ///< rounds may be in tiles, for pieces that no device has room for
  /// Devices get no part where the server's interface is better spent on fewer; false: all that are of use get one.
  bool leave_out = true;
};

/// Query blocks of attention: chunks are multiples of it (docs/numerics.md).
inline constexpr std::int64_t kChunkTokens = 128;

/// The layout with the least forecast that was found; none where nothing fits. Deterministic.
/// Complexity: about (devices + pieces) x stages for each of a few dozen candidates; several times that where the
/// server's interface takes long, since smaller fleets are planned for as well.
[[nodiscard]] std::optional<StagePlan> find_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                                   const StageOptions& options);
/// In fleets of no more devices than this forecasts are off by more than layouts differ: whoever can rehearses them.
inline constexpr std::size_t kSmallFleet = 128;
/// Devices that a step may be planned for, in the order in which they were given, and their layout.
struct StageFleet {
  std::vector<fleet::DeviceProfile> devices;
  StagePlan plan;
};
/// All devices; and, where the server's interface is what takes long, fleets that leave devices out. By forecast: the
/// first one's plan is that of find_stages(). Empty where nothing fits. Deterministic.
[[nodiscard]] std::vector<StageFleet> stage_fleets(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                                   const StageOptions& options);
/// For all devices, the layout of find_stages() and others that its search came by, for whoever can tell better which
/// is quickest: first the same one, without StageOptions::leave_out, then by forecast, each once, no more than `most`.
/// Others are cut by what processors can do as well, for fewer devices, or into stages of equal time, and their
/// forecasts have the processors in them. None where nothing fits. Deterministic.
[[nodiscard]] std::vector<StagePlan> stage_candidates(const StageWork& work,
                                                      std::span<const fleet::DeviceProfile> devices,
                                                      const StageOptions& options, std::size_t most);
/// As find_stages(). Errors: InputError where no layout fits, with the device that lacks least and how much it lacks.
[[nodiscard]] StagePlan plan_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                    const StageOptions& options);

}  // namespace cleave::plan
