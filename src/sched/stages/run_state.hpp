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
inline constexpr double kAtHand = 1e18;  // the server as a stand-in: bytes of memory, bytes a second of links

/// Priority::first of a tasklet: a device's link carries the lower number first. Backward goes before forward, so that
/// sequences leave and owners can begin. Owners read in the gaps, and what is read a second time comes last.
enum Urgency : std::int32_t {
  kWeights = 0,  // of replicas
  kBackward = 1,
  kForward = 2,
  kSliceWeights = 3,  // of owners that are no replicas, and of helpers
  kSums = 4,          // that owners send
  kOperands = 5,      // X and dY for owners
  kAgain = 6,         // X and dY for stand-ins
  kWitness = 7,       // second devices
};

/// A sequence at a stage, in one direction: forward or backward. Its chunks come and go in order.
struct Visit {
  std::int32_t device = kNobody;
  std::int32_t arrived = 0;                // chunks whose operand is at the server
  std::int32_t sent = 0;                   // chunks that the device was sent
  std::int32_t done = 0;                   // chunks whose result is at the server
  bool wanted = false;                     // backward: waits for a device, or has one
  bool kept = false;                       // its device keeps the values of the forward pass: nothing is recomputed
  std::int32_t sums = 0;                   // tasklets that sum it on its device, and end before its slot is free
  std::int32_t for_owner = kForAllOwners;  // backward, or of the head: StageItem::owner
  std::int32_t owners = 0;                 // how many there were then: for later ones its device keeps nothing
  std::int64_t turn = 0;                   // backward: its place in the order in which its device is sent chunks
  std::int32_t again = 0;                  // chunks that were sent before to a device that was lost
  std::int32_t loss = kNoLoss;
  std::vector<std::int32_t> senders{};  // devices that sent its results; noted only where there are second devices
  [[nodiscard]] bool placed() const { return device != kNobody; }
  /// Priority of its backward chunks, and of the sums that follow them: by its turn, or where it has none by the number
  /// of the sequence.
  [[nodiscard]] Priority way_back(std::int64_t sequence) const {
    return {kBackward, turn > 0 ? turn : 2 * sequence + 1};
  }
  /// Its device keeps the operands that this owner sums.
  [[nodiscard]] bool keeps_for(std::int32_t owner) const {
    return owner < owners && (for_owner == kForAllOwners || for_owner == owner);
  }
  /// The loss because of which the next chunk is sent again, or kNoLoss.
  [[nodiscard]] std::int32_t makes_good() const { return sent < again ? loss : kNoLoss; }
};

/// A replica as it runs. It has slots: each is memory for one open sequence, forward or backward. kLeastSlots of each
/// kind are its own; where devices are lost, the memory of its other slots is lent to roles that replace them.
struct ActiveReplica {
  std::int32_t device = 0;
  std::int64_t forward_slots = 0, backward_slots = 0;  // free
  std::int64_t forward_all = 0, backward_all = 0;
  std::int64_t kept_slots = 0, kept_all = 0;        // of sequences whose values are kept, in place of forward slots
  std::int64_t witness_slots = 0, witness_all = 0;  // for visits that it recomputes as a second device
  std::int64_t going_back = -1;     // the sequence of which it is sent chunks on their backward pass, one after another
  std::set<std::int64_t> behind{};  // sequences of which chunks are there, and wait until it is their turn
  Bytes held;                       // of an open sequence beyond the least number: plan::slot_bytes()
  Seconds ready;                    // its weights are expected
  TaskletId load;                   // holds its weights, or memory for them
  TaskletId brought;                // brought them, where they came later
  TaskletId places;                 // holds the memory of sequences, and of a chunk at work
  bool retired = false;             // no sequence will come any more: it only has the weights
  bool helps = false;               // it came for one that was lost, beside work of its own

  [[nodiscard]] bool keeps() const { return kept_all > 0; }
  // Free slots of one kind: `way` is forward_slots or backward_slots.
  [[nodiscard]] std::int64_t& free_slots(std::int64_t ActiveReplica::*way) {
    return keeps() && way == &ActiveReplica::forward_slots ? kept_slots : this->*way;
  }
};
inline constexpr std::int64_t kLeastSlots = plan::kLeastOpen;

/// A stage as it runs.
struct StageState {
  explicit StageState(const plan::StageCost& of) : cost(of) {}
  plan::StageCost cost;
  std::vector<ActiveReplica> replicas;
  double uplink = 0;                                         // bytes a second, of all planned replicas together
  std::vector<std::int32_t> owners;                          // indices
  std::set<std::int64_t> waiting_forward, waiting_backward;  // sequences that no replica has room for
  std::int64_t backward_left = 0;    // sequences whose backward pass (of a whole head: the only one) is not done
  std::int64_t gradients_left = 0;   // owners that have not sent their sums
  std::vector<std::int64_t> groups;  // sequences of each group of owners; empty where there is one group
  std::vector<bool> grouped;         // of each sequence: it has a group
  std::int64_t ungrouped = 0;        // sequences without a group
  bool loaded = true;                // its weights were sent; false: they are sent when its first chunk comes

  [[nodiscard]] bool is_stateless() const { return cost.open_forward().value() == 0 && !cost.is_head(); }
};

/// An owner as it runs.
struct OwnerState {
  std::int32_t device = 0, stage = 0;
  std::int64_t group = 0;
  bool replica = false;
  bool partial = false;  // others sum the same slices over other sequences
  bool closed = false;   // its sums are at the server, or stand-ins make them, or it only watches other owners
  bool lost = false;     // its device was lost, and it has no stand-in yet
  std::vector<plan::PieceSlice> slices;
  plan::OwnerCost cost;                    // of all that it sums
  double elements = 0;                     // of `slices`
  Bytes sums;                              // size of what it sends
  TaskletId load;                          // the tasklet that holds its memory, and its weights if they came with it
  TaskletId brought{};                     // the tasklet that brought its weights, where they came later
  Seconds since;                           // when it got this role
  std::vector<std::int64_t> sequences;     // that it sums over
  std::int64_t left = 0;                   // of `sequences`, those not summed yet
  std::int64_t panels = 0, panels_in = 0;  // of its sums: all, and those at the server
  std::int64_t part = 0;                   // panels of one tasklet
  std::vector<bool> parts_in{};            // tasklets that are answered; in any order, where no clock orders answers
  std::vector<bool> seen;                  // of each sequence: sent, being summed, or not its own
  std::int32_t loss = kNoLoss;  // the loss that its sums make good; only where all its sequences had passed by then
  [[nodiscard]] bool active() const { return (!closed && !lost) || !watched.empty(); }
  [[nodiscard]] bool is_servers_own() const { return device == kServer && !slices.empty(); }  // the server stands in
  bool drawn = false;                         // its sums are compared with those of a second device
  std::vector<plan::PieceSlice> by_server{};  // of its slices, those that the server sums for the comparison
  bool sent = false;                          // its sums are at the server
  std::vector<plan::PieceSlice> watched{};  // slices of other owners that it sums too, to compare its sums with theirs
  std::vector<std::int32_t> asked{};        // owners for whose sums it was asked for a digest
  std::int64_t open = 0;                    // of `asked`, those that it has not answered
  bool stands_in = false;                   // for an owner that was lost or late
  Seconds in_by{};                          // of a stand-in: when its sums are due
  std::int32_t rank = 0;                    // of a stand-in: higher than all before it; of other owners 0
  std::int32_t handed_on = 0;               // how often what it sums was taken from a late owner
  bool shares_room = false;  // another owner of the stage on its device holds OwnerCost::at_work for both
  TaskletId room{};          // the tasklet that holds at_work for it, once that other owner's role has ended
};

/// A sequence that has passed a stage, and that an owner still has to be sent. A device gets those for its earlier
/// roles as a stand-in first: when later roles were shared out, that order was taken for granted.
struct DueSum {
  std::int32_t rank = 0;  // OwnerState::rank of `owner`
  std::int64_t sequence = 0;
  std::int32_t stage = 0, owner = 0;
  std::int32_t loss = kNoLoss;
  friend bool operator<(const DueSum& a, const DueSum& b) {
    return std::tie(a.rank, a.sequence, a.stage, a.owner) < std::tie(b.rank, b.sequence, b.stage, b.owner);
  }
};

/// What is noted of a sum under way that serves several owners, or whose operands are read a second time.
struct SharedSum {
  std::vector<std::int32_t> owners;  // beside the one that its tasklet names
  bool again = false;                // it counts in DeviceBook::summing
};

/// A device as it runs.
struct DeviceBook {
  bool present = false;
  double in_hand = 0;                            // bytes that it still has to send for the visits that it was given
  double uplink = 0, downlink = 0, compute = 0;  // bytes, FLOP a second; divided by its factor where it is late
  Seconds latency;
  Bytes free;  // memory that no role of it takes
  fleet::DeviceProfile profile;
  std::int64_t roles = 0;    // stages of which it is a replica
  std::set<DueSum> due{};    // sums for stand-ins that it is sent later: `summing` is limited
  std::int64_t summing = 0;  // such sums that it was sent, and has not answered
  std::int64_t sending = 0;  // owners on it whose sums are on their way
  Seconds sending_since{};   // when `sending` left 0; acknowledgements wait behind those sums
  Seconds sent_at{};         // when `sending` came to 0
  bool contributed = false;  // it has answered something
  Measured slow_answer{};    // its last answer that took far too long
};

/// What a tasklet is for.
struct Purpose {
  Errand errand = Errand::weights;
  std::int32_t device = 0, stage = 0, owner = 0, chunk = 0;
  std::int64_t sequence = 0;
  std::int32_t loss = kNoLoss;  ///< the loss that made it necessary
  TaskletId tasklet{};
  bool of_visited = false;  ///< of a sum: its device ran the sequence, and holds X and dY until they are summed
  bool reads = false;       ///< of a sum: X and dY are sent with it
  std::int64_t pair = -1;   ///< of a witness: the number of the visit that it recomputes
  double computes = 0;      ///< seconds of its device's processor, at the believed rate
  [[nodiscard]] bool is_witness() const { return errand == Errand::witness || errand == Errand::witness_sums; }
};

}  // namespace cleave::sched::stages
