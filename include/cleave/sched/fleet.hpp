// Fleet: the narrow interface between the one scheduler and whatever carries out its tasklets.
//
// submit() a tasklet, start() a server kernel, ask for the next_event(). SimulatedFleet answers in virtual time without
// numbers; the server's fleets carry real blocks to real ranks. The scheduler must not be able to tell them apart.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::sched {

using timing::Measured;
using timing::Priority;  // of a tasklet: urgency, then turn
using timing::Usage;     // its streams are tasklets

/// What a witness's answer takes beside its header: SipTag.
inline constexpr Bytes kDigestPayload{16};

/// What a tasklet of a step in stages does; none in tiles.
enum class Errand : std::uint8_t {
  none,
  weights,       ///< a stage's, or a slice's, go to the device
  forward,       ///< one chunk through a stage
  remake,        ///< what of a sequence's forward pass its backward pass needs
  backward,      ///< one chunk back
  replay,        ///< a chunk again whose result is there: those after it need its keys and values
  sum,           ///< an owner sums over a sequence
  send_sums,     ///< and returns what it summed
  witness,       ///< a second device makes a whole visit again, and returns a digest of its answers
  witness_sums,  ///< a second owner returns a digest of what an owner sent
};

/// What a tasklet with an errand works on: what a fleet with real numbers must know of it beside its panels.
struct StageItem {
  /// Number among the step's owners; -1: it is for a replica. Of what begins a way back: the owner for whose sums the
  /// device keeps operands, kForAllOwners or kForNoOwner.
  std::int32_t owner = -1;
  std::int64_t sequence = 0;       ///< of the batch
  std::int64_t row = 0, rows = 0;  ///< tokens of the sequence
  bool back = false;               ///< of a replay, of a witness: the way back
  bool weights = false;            ///< of a load: they come with it
  bool begins = false;             ///< of a visit's answers it is the first
  bool keeps = false;              ///< of a replica's load: it keeps what sequences' ways forward have made
  bool returns_rows = false;       ///< a boundary's rows come back
  bool returns_norms = false;      ///< and the sequence's gradients of norms
  bool partial = false;            ///< of sums: others sum the same slices over other sequences
  std::int64_t chunk = 0;          ///< of a witness: rows of one of the answers that are digested
  std::int32_t first = -1;         ///< of a witness of sums: the owner that sent them
  /// Of a sum whose operands are sent: other owners of the stage on the device that it is for too; `row` counts them.
  std::shared_ptr<const std::vector<std::int32_t>> others{};
  /// Of an owner's load: what it owns; of sums that are sent: what they are of.
  std::shared_ptr<const std::vector<plan::PieceSlice>> slices{};
};

/// One submission of a piece of an operation to a device.
struct Tasklet {
  TaskletId id;
  OpId op;
  plan::TaskletPlan piece;
  bool redone = false;  ///< stands in for one that was lost or rejected
  /// Less urgent tasklets of a device give way, panel by panel, to more urgent ones (smaller numbers).
  std::int32_t urgency = 0;
  /// Number of its operation in the order in which operations were begun. Among equally urgent tasklets those of an
  /// earlier operation go first, so that what is sent again for it does not queue behind later ones.
  std::int64_t turn = 0;
  /// Its device computes it when nothing else waits, a panel at a time.
  bool background = false;

  /// The tasklet that brought the columns of B that it uses, on the same device; its own id, where it brings some.
  TaskletId columns{};

  /// A second device does the same work, and returns a digest of its result (quorum_fleet.hpp).
  bool witnessed = false;
  /// Of such a second device's tasklet: the one whose work it is; in stages, where it makes several again, itself.
  TaskletId witness_of{};
  [[nodiscard]] bool is_witness() const { return witness_of.valid(); }

  /// Of a tasklet that is no box of an operation: its panels. `piece` says its device and its totals.
  plan::PanelRun run{};
  [[nodiscard]] bool is_run() const { return run.panels > 0; }
  Errand errand = Errand::none;
  std::int32_t stage = 0;  ///< that it is for, where it has an errand
  StageItem item{};        ///< likewise

  /// It only brings columns of B: no answer comes of it.
  [[nodiscard]] bool brings_columns() const { return columns.valid() && columns == id; }
  [[nodiscard]] Priority priority() const { return {urgency, turn}; }
};

enum class EventKind : std::uint8_t {
  done,         ///< the tasklet's block has arrived, passed its check and stands in its place
  rejected,     ///< the device answered, but wrongly, or refused (`device` is to be distrusted)
  lost,         ///< the tasklet will not be answered, though its device is there: a message was damaged or dropped
  kernel_done,  ///< the server kernel of operation `op` is complete
  left,         ///< the device is gone with whatever it holds
  joined,       ///< the device is there (again), empty-handed
  timeout,      ///< nothing happened before the deadline
  late,         ///< a tasklet that was forgotten has been answered after all: nothing is placed, but it was `measured`
};

struct Event {
  EventKind kind = EventKind::timeout;
  Seconds at;
  TaskletId tasklet;
  DeviceId device;
  OpId op;
  Measured measured{};        ///< of `done` and `late`
  Seconds unnoticed{0};       ///< of `left`: for how long the device had been silent before
  DeviceId also{};            ///< of `rejected`, where two answers differ and both are wrong: the other device
  bool lacks_memory = false;  ///< of `lost`, in stages: its device refused it, as it has no room for it
};

/// See the file comment. All times are in the fleet's own clock (virtual or emulated), which starts at 0.
/// Collective: rank 0 only.
class Fleet {
 public:
  virtual ~Fleet() = default;

  [[nodiscard]] virtual Seconds now() const = 0;

  /// Devices that can be given work now, each with the time for which its resources are still taken at its declared
  /// rates.
  [[nodiscard]] virtual std::vector<plan::DeviceState> devices() const = 0;

  /// The same as a tasklet at `priority` meets them: what it goes ahead of does not count, but for a message or a panel
  /// that is under way. Fleets whose devices keep no order by priority count everything.
  [[nodiscard]] virtual std::vector<plan::DeviceState> devices_ahead_of(const Priority& priority) const = 0;

  /// Changes whenever a device leaves, joins or is announced with other rates; plans made for one roster stay valid for
  /// it.
  [[nodiscard]] virtual std::uint64_t roster() const = 0;

  /// Makes `graph` the one whose operations tasklets and kernels refer to. Requires: nothing wanted in flight.
  virtual void begin_step(const model::StepGraph& graph) = 0;

  /// After begin_step(): the step is run in these stages, and tasklets have errands. Requires: the graph has one row
  /// group.
  virtual void begin_stages(const plan::StagePlan& /*plan*/) {}
  /// Of those, one that runs in tiles (plan::Stage::tiles) begins one of its ways: its operations read the boundaries
  /// that have come to it. And it ends: others read the boundaries that it has made.
  virtual void begin_tiles(std::int32_t /*stage*/, bool /*back*/) {}
  virtual void end_tiles(std::int32_t /*stage*/, bool /*back*/) {}

  /// Sends a tasklet on its way. Its inputs are complete, and stay unchanged until its operation is.
  /// piece.device may be kServerDevice: the server computes the block itself.
  virtual void submit(const Tasklet& tasklet) = 0;

  /// Starts a server kernel; kernels run one after another in the order in which they were started.
  virtual void start(const model::Operation& kernel) = 0;

  /// Every block of an operation, or its kernel, is done: its results are whole, and others may read them.
  virtual void finish(OpId /*op*/) {}
  /// Nobody needs the operands of an operation that is finished any more: what only it needed may be given up.
  virtual void retire(OpId op) = 0;

  /// A tasklet's result is no longer wanted: if it comes, its block is dropped, and at most a `late` event tells.
  virtual void forget(TaskletId tasklet) = 0;

  /// Nobody uses the columns any more that a tasklet brought to a device, which may be gone: it may give them up.
  virtual void release(TaskletId columns, DeviceId device) = 0;

  /// The next thing that happens, no later than `deadline` (then: timeout).
  virtual Event next_event(Seconds deadline) = 0;

  /// Usage since the fleet was made, per device in order of id.
  [[nodiscard]] virtual std::span<const Usage> usage() const = 0;
};

}  // namespace cleave::sched
