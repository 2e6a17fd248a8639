// Causal attention over whole (sequence, key/value head) pairs. The G query heads that share a key/value head are part
// of the pair, so dK and dV are complete wherever the pair is computed.
//
// Callers: device (the pairs of its tasklet), server (pairs that no device can compute). A pair is always computed by
// the same calls on its own buffers, so its bits depend neither on which pairs go together nor on how many there are.
// The softmax is computed anew in the backward pass; no seq x seq matrix is ever stored.
//
// Layout of a pair, all contiguous: q, o, dq, do [G, seq, hd]; k, v, dk, dv [seq, hd].
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/units.hpp"

namespace cleave::kernels {

struct PairShape {
  std::int64_t heads = 0;  ///< G, query heads of a pair
  std::int64_t seq = 0, head_dim = 0;
};

/// Scratch that one call needs, in bytes: about seq * (2 * 128 + hd) floats backward, half of it forward.
[[nodiscard]] Bytes attention_forward_scratch(PairShape shape);
[[nodiscard]] Bytes attention_backward_scratch(PairShape shape);

/// o_t = sum over j <= t of P[t,j] v_j,  P[t,.] = softmax over j <= t of q_t . k_j / sqrt(hd), for each query head.
/// Requires: scratch of attention_forward_scratch(shape) bytes. Non-finite inputs give non-finite outputs.
void attention_forward(PairShape shape, const float* q, const float* k, const float* v, float* o,
                       std::span<float> scratch);

/// Gradients of the above for the gradient d_o of o:
///   dP = dO V^T,  dS = P * (dP - rowsum(P * dP)) / sqrt(hd),  dQ = dS K,  dK = sum over heads of dS^T Q,  dV = sum of
///   P^T dO.
/// Requires: scratch of attention_backward_scratch(shape) bytes.
void attention_backward(PairShape shape, const float* q, const float* k, const float* v, const float* d_o, float* dq,
                        float* dk, float* dv, std::span<float> scratch);

}  // namespace cleave::kernels
