// The books of a step in stages: where every sequence is, what every device has in hand, what every owner has summed.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched::stages {

inline constexpr std::int32_t kNobody = -1, kNoLoss = -1, kServer = -2;
inline constexpr double kAtHand = 1e18;  // bytes a second, and bytes: of what is at the server

/// Urgencies: what a device does first. Backward before forward, so that sequences leave and owners can begin; owners
/// in the gaps, and what they read again last.
enum Urgency : std::int32_t {
  kWeights = 0,
  kBackward = 1,
  kForward = 2,
  kSliceWeights = 3,
  kSums = 4,
  kOperands = 5,
  kAgain = 6,
  kWitness = 7,  // second devices, in what gaps are left
};

/// A sequence at a stage, in one direction. Chunks come and go in order.
struct Visit {
  std::int32_t device = kNobody;
  std::int32_t arrived = 0;                // chunks whose operand is at the server
  std::int32_t sent = 0;                   // of them, to the device
  std::int32_t done = 0;                   // results at the server
  bool wanted = false;                     // backward: waits for a device, or has one
  bool kept = false;                       // backward, or of the head: its device has the values of the way forward
  std::int32_t sums = 0;                   // that its device is to make of it before it leaves
  std::int32_t for_owner = kForAllOwners;  // backward, or of the head: StageItem::owner
  std::int64_t turn = 0;                   // backward: its place in the order in which its device is sent chunks
  std::int32_t again = 0;                  // chunks that were sent before to a device that was lost
  std::int32_t loss = kNoLoss;
  std::vector<std::int32_t> senders{};  // of its results, where there are second devices
  [[nodiscard]] bool placed() const { return device != kNobody; }
  /// Of its chunks on their way back, and of the sums that follow them: sequence by sequence, or as its turn is.
  [[nodiscard]] Priority way_back(std::int64_t sequence) const {
    return {kBackward, turn > 0 ? turn : 2 * sequence + 1};
  }
  /// Its device has operands for that owner's sums.
  [[nodiscard]] bool keeps_for(std::int32_t owner) const { return for_owner == kForAllOwners || for_owner == owner; }
  /// The loss that the next chunk makes good.
  [[nodiscard]] std::int32_t makes_good() const { return sent < again ? loss : kNoLoss; }
};

/// A replica as it runs. Every replica keeps kLeastSlots each way; memory of further ones is lent where devices are
/// lost.
struct Host {
  std::int32_t device = 0;
  std::int64_t forward_slots = 0, backward_slots = 0;  // free
  std::int64_t forward_all = 0, backward_all = 0;
  std::int64_t kept_slots = 0, kept_all = 0;        // of sequences whose values are kept: they go forward in these
  std::int64_t witness_slots = 0, witness_all = 0;  // for visits that it makes again as a second device
  std::int64_t going_back = -1;  // the sequence of which it is sent chunks on their way back, one after another
  Bytes held;                    // of an open sequence beyond the least number: plan::slot_bytes()
  Seconds ready;                 // its weights are expected
  TaskletId load;                // holds its weights, or memory for them
  TaskletId brought;             // brought them, where they came later
  TaskletId places;              // holds the memory of sequences, and of a chunk at work
  bool retired = false;          // no sequence will come any more: it only has the weights
  bool helps = false;            // it came for one that was lost, beside work of its own

  [[nodiscard]] bool keeps() const { return kept_all > 0; }
  // Sequences' slots on one of the ways.
  [[nodiscard]] std::int64_t& free_slots(std::int64_t Host::*way) {
    return keeps() && way == &Host::forward_slots ? kept_slots : this->*way;
  }
};
inline constexpr std::int64_t kLeastSlots = plan::kLeastOpen;

/// A stage as it runs.
struct StageState {
  explicit StageState(const plan::StageCost& of) : cost(of) {}
  plan::StageCost cost;
  std::vector<Host> hosts;
  double uplink = 0;                                         // of all replicas, as planned
  std::vector<std::int32_t> owners;                          // indices
  std::set<std::int64_t> waiting_forward, waiting_backward;  // sequences that no replica has room for
  std::int64_t backward_left = 0;    // sequences whose backward pass (of the head: the only one) is to come
  std::int64_t gradients_left = 0;   // owners that have not sent their sums
  std::vector<std::int64_t> groups;  // of owners, where there are several: sequences that each has been given
  std::vector<bool> grouped;         // of each sequence: it has a group
  std::int64_t ungrouped = 0;        // sequences without one
  bool loaded = true;                // its weights are on their way; false: they leave when the first chunk comes

  [[nodiscard]] bool is_stateless() const { return cost.open_forward().value() == 0 && !cost.is_head(); }
};

/// An owner as it runs.
struct OwnerState {
  std::int32_t device = 0, stage = 0;
  std::int64_t group = 0;
  bool replica = false;
  bool partial = false;  // others sum the same slices over other sequences
  bool closed = false;   // its sums are at the server, or others stand in for it, or it only watches others
  bool lost = false;     // its device was: nobody stands in for it yet
  std::vector<plan::PieceSlice> slices;
  plan::OwnerCost cost;                    // of all that it sums
  double elements = 0;                     // of `slices`
  Bytes sums;                              // that go up
  TaskletId load;                          // holds its memory
  TaskletId brought{};                     // brought its weights, where they came later
  Seconds since;                           // it has this role
  std::vector<std::int64_t> sequences;     // that it sums over
  std::int64_t left = 0;                   // of them, to be summed
  std::int64_t panels = 0, panels_in = 0;  // of its sums: that go up, that are in
  std::int64_t part = 0;                   // of them, that one tasklet brings
  std::vector<bool> seen;                  // of each sequence: sent, being summed, or not its own
  std::int32_t loss = kNoLoss;             // that its sums make good: all that it sums had passed
  [[nodiscard]] bool active() const { return (!closed && !lost) || !watched.empty(); }
  [[nodiscard]] bool is_servers_own() const { return device == kServer && !slices.empty(); }  // not to be compared
  bool drawn = false;                         // its sums are to be compared
  std::vector<plan::PieceSlice> by_server{};  // of them, that the server sums itself
  bool sent = false;                          // its sums are at the server
  std::vector<plan::PieceSlice> watched{};    // that it sums as well, to be compared with what others send
  std::vector<std::int32_t> asked{};          // owners whose sums it was asked to compare
  std::int64_t open = 0;                      // of them, that it has not answered
  bool stands_in = false;                     // for one that was lost or late
  Seconds in_by{};                            // of a stand-in: when its sums are to be in
  std::int32_t rank = 0;                      // of a stand-in: greater than of all before it; of other owners 0
  std::int32_t handed_on = 0;                 // how often what it sums was taken from one that was late
  bool shares_room = false;  // what is at work on a sequence has its room in another owner's role there
  TaskletId room{};          // holds that, where the other role has ended
};

/// A sequence that passed before, and that an owner is to be sent. What a device stood in for first comes first:
/// whoever shared that out counted on it sooner, and shared out the rest knowing that it was there.
struct DueSum {
  std::int32_t rank = 0;  // among those of the device: OwnerState::rank
  std::int64_t sequence = 0;
  std::int32_t stage = 0, owner = 0;
  std::int32_t loss = kNoLoss;
  friend bool operator<(const DueSum& a, const DueSum& b) {
    return std::tie(a.rank, a.sequence, a.stage, a.owner) < std::tie(b.rank, b.sequence, b.stage, b.owner);
  }
};

/// Of a sum that is under way, where it is for several owners or read again.
struct SharedSum {
  std::vector<std::int32_t> owners;  // that it is for, beside the one that its tasklet names
  bool again = false;                // it is read again
};

/// A device as it runs.
struct DeviceBook {
  bool present = false;
  double in_hand = 0;  // bytes up of visits that it has been given
  double uplink = 0, downlink = 0, compute = 0;
  Seconds latency;
  Bytes free;  // memory that no role has
  fleet::DeviceProfile profile;
  std::int64_t roles = 0;    // stages of which it is a replica
  std::set<DueSum> due{};    // what is to be summed again, and waits for what it was sent of that
  std::int64_t summing = 0;  // that it was sent, and has not summed
  std::int64_t sending = 0;  // owners on it whose sums are on their way
  Seconds sending_since{};   // what it acknowledges meanwhile waits behind them
  Seconds sent_at{};         // the last of them was in; counts while none is on its way
  bool contributed = false;
  Measured slow_answer{};  // that it took far longer for than it should have
};

/// What a tasklet is for.
struct Purpose {
  Errand errand = Errand::weights;
  std::int32_t device = 0, stage = 0, owner = 0, chunk = 0;
  std::int64_t sequence = 0;
  std::int32_t loss = kNoLoss;  ///< that it makes good
  TaskletId tasklet{};
  bool of_visited = false;  ///< of a sum: of a sequence that its device has run back, and holds until then
  bool reads = false;       ///< of a sum: its operands are sent
  std::int64_t pair = -1;   ///< of a witness: the visit
  double computes = 0;      ///< seconds of its device, as believed
  [[nodiscard]] bool is_witness() const { return errand == Errand::witness || errand == Errand::witness_sums; }
};

}  // namespace cleave::sched::stages
