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

/// Payload bytes of a witness's answer: a SipTag.
inline constexpr Bytes kDigestPayload{16};

/// What a tasklet of a step in stages does. In tiles: none.
enum class Errand : std::uint8_t {
  none,
  weights,       ///< a load: reserves memory for a stage or a slice, and brings its weights
  forward,       ///< forward pass of a chunk through a stage
  recompute,     ///< recomputation of a sequence's forward values, before its backward pass
  backward,      ///< backward pass of a chunk through a stage
  replay,        ///< a chunk again whose result is at the server already: later chunks need its keys and values
  sum,           ///< an owner adds a sequence to its sums
  send_sums,     ///< an owner returns its sums
  witness,       ///< a second device recomputes a whole visit and returns a digest of its answers
  witness_sums,  ///< a second owner returns a digest of the sums that an owner has sent
};

/// What a tasklet with an errand works on, beside its panels: for fleets with real numbers. Members that an errand does
/// not use keep their defaults.
struct StageItem {
  /// weights, sum, send_sums, witness_sums: number of the owner among the step's owners; -1: the tasklet is a
  /// replica's. forward at a whole head, recompute, backward: the owner for whose sums the device keeps operands,
  /// kForAllOwners or kForNoOwner.
  std::int32_t owner = -1;
  std::int64_t sequence = 0;       ///< number of the sequence in the batch
  std::int64_t row = 0, rows = 0;  ///< tokens [row, row + rows) of the sequence; send_sums: `row` numbers the message
  bool back = false;               ///< replay, witness: of a backward pass
  bool weights = false;            ///< weights: the weights come with this load
  bool begins = false;             ///< forward, backward, replay, witness: the first of its visit
  bool keeps = false;              ///< weights: the replica keeps sequences; backward, replay: of a kept sequence
  bool returns_rows = false;       ///< rows of a boundary come back
  bool returns_norms = false;      ///< the sequence's gradients of norms come back
  bool partial = false;            ///< sums: other owners sum the same slices over other sequences
  std::int64_t chunk = 0;          ///< witness: rows of each of the answers that are digested
  std::int32_t first = -1;         ///< witness_sums: the owner that sent the sums
  /// sum with operands: further owners of the stage on the same device that the operands are for; `row` is their
  /// number.
  std::shared_ptr<const std::vector<std::int32_t>> others{};
  /// weights of an owner: its slices. send_sums, witness_sums: the slices whose sums are sent or compared.
  std::shared_ptr<const std::vector<plan::PieceSlice>> slices{};
};

/// One submission of work to a device: a box or a run of pairs of an operation, or in stages an errand.
struct Tasklet {
  TaskletId id;
  OpId op;
  plan::TaskletPlan piece;
  bool redone = false;  ///< replaces a tasklet that was lost or rejected
  /// A smaller number is more urgent: the device's links serve it first, panel by panel.
  std::int32_t urgency = 0;
  /// Orders equally urgent tasklets, the least first. In tiles: the number of the operation in the order in which
  /// operations were begun, so that what is sent again for an operation does not queue behind later ones.
  std::int64_t turn = 0;
  /// The device computes it only while nothing else waits, a panel at a time.
  bool background = false;

  /// The tasklet that brought the columns of B that this one uses, on the same device; its own id where it brings some,
  /// and in stages where it is a load, whose data stay on the device until release().
  TaskletId columns{};

  /// A second device will do the same work and return a digest of its result (quorum_fleet.hpp).
  bool witnessed = false;
  /// A witness's tasklet: the tasklet whose work it does again; in stages, where it does that of several, its own id.
  TaskletId witness_of{};
  [[nodiscard]] bool is_witness() const { return witness_of.valid(); }

  /// The panels of a tasklet that is no box of an operation; `piece` then has its device and its totals.
  plan::PanelRun run{};
  [[nodiscard]] bool is_run() const { return run.panels > 0; }
  Errand errand = Errand::none;
  std::int32_t stage = 0;  ///< with an errand: number of the stage
  StageItem item{};        ///< with an errand: what it works on

  /// It only brings data (columns of B, a stage's weights, memory for a role) that stay on the device until release();
  /// it is not answered.
  [[nodiscard]] bool stays_on_device() const { return columns.valid() && columns == id; }
  [[nodiscard]] Priority priority() const { return {urgency, turn}; }
};

enum class EventKind : std::uint8_t {
  done,         ///< the tasklet's result has arrived, has passed its check and is in its place
  rejected,     ///< the device answered, but wrongly, or refused (`device` is to be distrusted)
  lost,         ///< the tasklet will not be answered, though its device is there: a message was damaged or dropped
  kernel_done,  ///< the server kernel of operation `op` is complete
  left,         ///< the device is gone with whatever it holds
  joined,       ///< the device is there (again), empty-handed
  timeout,      ///< nothing happened before the deadline
  late,         ///< a tasklet that was forgotten has been answered after all: nothing is placed, but it was `measured`
};

/// Something that happened in a fleet. Members that a kind does not use keep their defaults.
struct Event {
  EventKind kind = EventKind::timeout;
  Seconds at;                 ///< when, by the fleet's clock
  TaskletId tasklet;          ///< done, rejected, lost, late
  DeviceId device;            ///< done, rejected, lost, left, joined, late
  OpId op;                    ///< kernel_done
  Measured measured{};        ///< done, late: what the device's resources did
  Seconds unnoticed{0};       ///< left: for how long the device had been silent before
  DeviceId also{};            ///< rejected: a second device that is to be distrusted, where both of a pair were wrong
  bool lacks_memory = false;  ///< lost, in stages: the device refused the tasklet for want of memory
};

/// See the file comment. All times are in the fleet's own clock (virtual or emulated), which starts at 0.
/// Collective: rank 0 only.
class Fleet {
 public:
  virtual ~Fleet() = default;

  [[nodiscard]] virtual Seconds now() const = 0;

  /// The devices that can be given work now, in order of their ids, each with the time for which its resources are
  /// still busy at declared rates.
  [[nodiscard]] virtual std::vector<plan::DeviceState> devices() const = 0;

  /// The same as a tasklet of this priority would meet them: work that it goes ahead of does not count, except a
  /// message or a panel that is under way. A fleet whose devices keep no order by priority counts all work.
  [[nodiscard]] virtual std::vector<plan::DeviceState> devices_ahead_of(const Priority& priority) const = 0;

  /// Every device of the fleet, in order of ids, whether it is there or not.
  [[nodiscard]] virtual std::vector<fleet::DeviceProfile> all_devices() const = 0;

  /// The number of the roster: it changes whenever a device leaves, joins or is announced with other rates. A plan is
  /// valid for the roster that it was made for.
  [[nodiscard]] virtual std::uint64_t roster() const = 0;

  /// Begins a step of `graph`, to whose operations tasklets and kernels refer from now on. Requires: `graph` outlives
  /// the step; no tasklet is in flight whose result is wanted.
  virtual void begin_step(const model::StepGraph& graph) = 0;

  /// Follows begin_step() where the step is run in stages: tasklets then have errands. Requires: the graph has one row
  /// group.
  virtual void begin_stages(const plan::StagePlan& /*plan*/) {}
  /// A stage that runs in tiles (plan::Stage::tiles) begins, or ends, its forward or (`back`) its backward pass. At the
  /// begin, boundaries become tensors that its operations read; at the end, tensors become boundaries that other stages
  /// read.
  virtual void begin_tiles(std::int32_t /*stage*/, bool /*back*/) {}
  virtual void end_tiles(std::int32_t /*stage*/, bool /*back*/) {}

  /// Submits a tasklet. piece.device may be kServerDevice: the server computes it itself. Requires: its inputs are
  /// complete, and stay unchanged until its operation is finished.
  virtual void submit(const Tasklet& tasklet) = 0;

  /// Starts a server kernel. Kernels run one after another, in the order in which they were started. Requires: its
  /// inputs are complete.
  virtual void start(const model::Operation& kernel) = 0;

  /// Says that every block of an operation, or its kernel, is done: other operations may read its results.
  virtual void finish(OpId /*op*/) {}
  /// Says that the operands of a finished operation are not needed for it any more, so that memory may be freed.
  virtual void retire(OpId op) = 0;

  /// Says that a tasklet's result is not wanted any more. If it comes, it is dropped; there is at most a `late` event.
  virtual void forget(TaskletId tasklet) = 0;

  /// Says that the data which a tasklet brought to a device, such as columns of B, are not used any more. The device
  /// may be gone.
  virtual void release(TaskletId columns, DeviceId device) = 0;

  /// Waits for the next event, at most until `deadline`; then the event is a timeout. Errors: what an implementation's
  /// transport and checks throw.
  virtual Event next_event(Seconds deadline) = 0;

  /// Usage since the fleet was made, by device id.
  [[nodiscard]] virtual std::span<const Usage> usage() const = 0;
};

}  // namespace cleave::sched
