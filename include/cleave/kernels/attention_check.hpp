// Checks attention that somebody else computed at about half the cost of computing it.
//
// The softmax is not linear, so no vector can stand for it: the scores have to be computed. P (and, backward, dS) is
// computed anew, by the device's own calls and so with the device's own bits. What is left are products of matrices
// that are then known, and those are checked as any product is (product_check.hpp), with x of +-1 over the head
// dimension:
//   O x = P (V x);      dQ x = dS (K x),   dK x = sum over heads of dS^T (Q x),   dV x = sum over heads of P^T (dO x).
// That spares one of two products forward and three of five backward. The bounds are those of a product, but that
// block results are added in fp32: over K blocks in O and dQ, over blocks of 128 query rows in dK and dV.
#pragma once

#include <span>

#include "cleave/base/random.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/attention.hpp"

namespace cleave::kernels {

/// The largest ratio of a row's error to its bound in a pair's O: at most 1 where O is honest, infinite where O is not
/// finite. Layouts and scratch: as attention_forward(). `result`: the type that O was rounded to for its transfer.
/// `random`: where x is drawn from.
[[nodiscard]] double check_attention_forward(PairShape shape, const float* q, const float* k, const float* v,
                                             const float* o, DType result, const Random& random,
                                             std::span<float> scratch);

/// The same for dQ, dK and dV together. Layouts and scratch: as attention_backward().
[[nodiscard]] double check_attention_backward(PairShape shape, const float* q, const float* k, const float* v,
                                              const float* d_o, const float* dq, const float* dk, const float* dv,
                                              DType result, const Random& random, std::span<float> scratch);

}  // namespace cleave::kernels
