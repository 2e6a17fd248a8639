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

/// Query rows that are worked on together. Part of the definition: chunks of a sequence begin at multiples of it.
inline constexpr std::int64_t kQueryRows = 128;

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

// A sequence in chunks: query rows [t0, t0 + rows) of a pair, where rows before t0 belong to earlier chunks. Chunks go
// forward from the first to the last, backward from the last to the first, so that a chunk needs of the others keys,
// values and their gradients only. q, o, d_o, dq: [G, rows, hd], of the chunk; k, v, dk, dv: [seq, hd], of which the
// rows before t0 + rows are read or written. The bits of a row do not depend on how a sequence is cut.
// Requires: t0 is a multiple of kQueryRows, and so is rows, but for the last chunk of a sequence; scratch as above.

/// As attention_forward.
void attention_forward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                             const float* v, float* o, std::span<float> scratch);

/// dq as of attention_backward; the chunk's part of dk and dv is added to what is there. With the chunk that begins at
/// t0, rows of dk and dv from t0 on are complete.
void attention_backward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                              const float* v, const float* d_o, float* dq, float* dk, float* dv,
                              std::span<float> scratch);

}  // namespace cleave::kernels
