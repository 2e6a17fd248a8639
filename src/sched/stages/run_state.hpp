// The books of a step in stages: where every sequence is, what every device has in hand, what every owner has summed.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched::stages {

inline constexpr std::int32_t kNobody = -1;

/// A sequence at a stage, in one direction. Chunks come and go in order.
struct Visit {
  std::int32_t device = kNobody;
  std::int32_t arrived = 0;  // chunks whose operand is at the server
  std::int32_t sent = 0;     // of them, to the device
  std::int32_t done = 0;     // results at the server
  bool wanted = false;       // backward: waits for a device, or has one
  [[nodiscard]] bool placed() const { return device != kNobody; }
};

/// A replica as it runs.
struct Host {
  std::int32_t device = 0;
  std::int64_t forward_slots = 0, backward_slots = 0;
};

/// A stage as it runs.
struct StageState {
  plan::StageCost cost;
  std::vector<Host> hosts;
  std::vector<std::int32_t> owners;                          // indices
  std::set<std::int64_t> waiting_forward, waiting_backward;  // sequences that no replica has room for
  std::int64_t backward_left = 0;   // sequences whose backward pass (of the head: the only one) is to come
  std::int64_t gradients_left = 0;  // owners that have not sent their sums
};

/// An owner as it runs.
struct OwnerState {
  std::int32_t device = 0, stage = 0;
  std::int64_t group = 0;
  bool replica = false;
  plan::OwnerCost cost;
  Bytes sums;              // that go up
  std::int64_t left = 0;   // sequences to be summed
  std::vector<bool> seen;  // of each sequence: sent, or being summed
};

/// A device as it runs.
struct DeviceBook {
  bool present = false;
  Seconds ready;       // its weights are expected
  double in_hand = 0;  // bytes up of visits that it has been given
  double uplink = 0, downlink = 0;
  bool contributed = false;
};

enum class Errand : std::uint8_t { weights, forward, remake, backward, sum, send_sums };

/// What a tasklet is for.
struct Purpose {
  Errand errand = Errand::weights;
  std::int32_t device = 0, stage = 0, owner = 0, chunk = 0;
  std::int64_t sequence = 0;
};

/// Urgencies: what a device does first. Backward before forward, so that sequences leave and owners can begin; owners
/// in the gaps.
enum Urgency : std::int32_t { kWeights = 0, kBackward = 1, kForward = 2, kSliceWeights = 3, kSums = 4, kOperands = 5 };

}  // namespace cleave::sched::stages
