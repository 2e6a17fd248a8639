// A pipeline of stages in virtual time: micro-batches go forward and back, transfers overlap with compute.
//
// Each stage has a processor, an uplink and a downlink, all serial. A stage prefers a backward pass that is ready to a
// forward one, and starts a forward pass only while fewer than `in_flight` of its micro-batches await their backward
// pass: in_flight = M is GPipe's order, stages - p is 1F1B. A stage may stand for a group of devices in lockstep.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cleave::rivals {

/// What a transfer between neighbouring stages takes, affine in the sequences of the micro-batch.
struct StageHop {
  double send_s = 0, receive_s = 0;              ///< per sequence, of the sender's uplink and the receiver's downlink
  double send_fixed_s = 0, receive_fixed_s = 0;  ///< per message: its header
  double latency_s = 0;
};

struct Stage {
  double forward_s = 0, backward_s = 0;  ///< compute per sequence; backward includes what is computed again
  std::int64_t in_flight = 1;            ///< at least 1
  StageHop next, previous;               ///< to the next stage (activations), to the previous one (their gradients)
};

struct StageTimes {
  double end_s = 0;                            ///< its last backward pass is computed
  double quiet_s = 0;                          ///< and its last transfer is off its links
  double compute_s = 0, up_s = 0, down_s = 0;  ///< busy
  std::int64_t most_in_flight = 0;
};

/// Runs micro-batches of the given numbers of sequences. Deterministic; ties in order of making.
/// Requires: at least one stage and one micro-batch.
[[nodiscard]] std::vector<StageTimes> run_pipeline(std::span<const Stage> stages,
                                                   std::span<const std::int64_t> micro_batches);

/// `sequences` in micro-batches of `size`, the last one smaller where it does not divide.
[[nodiscard]] std::vector<std::int64_t> split_batch(std::int64_t sequences, std::int64_t size);

/// `total` in whole numbers in proportion to the weights, by largest remainder; ties to the first.
/// Requires: weights positive in sum.
[[nodiscard]] std::vector<std::int64_t> apportion(std::int64_t total, std::span<const double> weights);

}  // namespace cleave::rivals
