// Causal attention over whole (sequence, key/value head) pairs. The G query heads that share a key/value head are part
// of the pair, so dK and dV are complete wherever the pair is computed.
//
// Callers: device (the pairs of its tasklet), server (pairs that no device can compute). A pair is always computed by
// the same calls on its own buffers, so its bits depend neither on which pairs go together nor on how many there are.
// The softmax is computed anew in the backward pass; no seq x seq matrix is ever stored. Sources: Vaswani et al. 2017;
// Dao et al. 2022 (FlashAttention) for the backward pass by blocks; Ainslie et al. 2023 for shared key/value heads.
//
// Layout of a pair, all contiguous: q, o, dq, do [G, seq, hd]; k, v, dk, dv [seq, hd].
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"

namespace cleave::kernels {

struct PairShape {
  std::int64_t heads = 0;  ///< G, query heads of a pair
  std::int64_t seq = 0, head_dim = 0;
};

/// Query rows that are computed together. Results depend on it: chunks of a sequence must begin at multiples of it.
inline constexpr std::int64_t kQueryRows = kRowBlock;

/// Bytes of scratch that one call needs: about seq * (2 * 128 + hd) floats backward, half as many forward.
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

// A sequence may be computed in chunks: query rows [t0, t0 + rows) of a pair. The forward pass takes the chunks from
// the first to the last, the backward pass from the last to the first. So a chunk needs nothing of the others but keys,
// values and their gradients. The bits of a row do not depend on how the sequence is cut.
//
// q, o, d_o, dq: [G, rows, hd], of the chunk. k, v, dk, dv: [seq, hd]; their rows [0, t0 + rows) are read or written.
// Requires: t0 is a multiple of kQueryRows, and so is `rows` unless the sequence ends with the chunk.

/// The chunk's rows of attention_forward(). Requires: scratch as attention_forward().
void attention_forward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                             const float* v, float* o, std::span<float> scratch);

/// The chunk's rows of attention_backward(): overwrites dq, and adds the chunk's part to dk and dv.
/// Rows [t0, seq) of dk and dv are complete afterwards. Requires: scratch as attention_backward().
void attention_backward_chunk(PairShape shape, std::int64_t t0, std::int64_t rows, const float* q, const float* k,
                              const float* v, const float* d_o, float* dq, float* dk, float* dv,
                              std::span<float> scratch);

}  // namespace cleave::kernels
