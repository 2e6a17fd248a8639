// Activations: one branch-free loop each.
#include "cleave/kernels/activations.hpp"

#include "fast_math.hpp"
#include "row_chunks.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

constexpr float kTwoSqrt2OverPi = 1.59576912160573081f, kCubic = 0.044715f;  // 2 sqrt(2/pi)

CLEAVE_INLINE void gelu_row(const float* x, std::int64_t n, float* y) {
  for (std::int64_t j = 0; j < n; ++j) {
    const float two_u = kTwoSqrt2OverPi * (x[j] + kCubic * x[j] * x[j] * x[j]);
    y[j] = x[j] * sigmoid_of(two_u).value;
  }
}

CLEAVE_INLINE void gelu_backward_row(const float* x, const float* dy, std::int64_t n, float* dx) {
  for (std::int64_t j = 0; j < n; ++j) {
    const float square = x[j] * x[j];
    const Sigmoid s = sigmoid_of(kTwoSqrt2OverPi * (x[j] + kCubic * square * x[j]));
    const float slope = kTwoSqrt2OverPi * (1.0f + 3.0f * kCubic * square);  // 2 u'
    dx[j] = dy[j] * (s.value + x[j] * slope * (s.value * s.complement));
  }
}

CLEAVE_INLINE void relu_row(const float* x, std::int64_t n, float* y) {
  for (std::int64_t j = 0; j < n; ++j) y[j] = x[j] < 0.0f ? 0.0f : x[j];
}

CLEAVE_INLINE void relu_backward_row(const float* x, const float* dy, std::int64_t n, float* dx) {
  for (std::int64_t j = 0; j < n; ++j) dx[j] = x[j] > 0.0f ? dy[j] : 0.0f;
}

CLEAVE_INLINE void swiglu_row(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t j = 0; j < n; ++j) y[j] = gate[j] * sigmoid_of(gate[j]).value * up[j];
}

CLEAVE_INLINE void swiglu_backward_row(const float* gate, const float* up, const float* dy, std::int64_t n,
                                       float* d_gate, float* d_up) {
  for (std::int64_t j = 0; j < n; ++j) {
    const float g = gate[j], u = up[j], d = dy[j];
    const Sigmoid s = sigmoid_of(g);
    d_gate[j] = d * u * s.value * (1.0f + g * s.complement);
    d_up[j] = d * g * s.value;
  }
}

}  // namespace

void gelu_new(Parallel& parallel, ConstRows x, Rows y) {
  for_rows(parallel, x.rows, x.cols, [&](std::int64_t i) { dispatch<gelu_row>(x.row(i), x.cols, y.row(i)); });
}
void gelu_new_backward(Parallel& parallel, ConstRows x, ConstRows dy, Rows dx) {
  for_rows(parallel, x.rows, x.cols,
           [&](std::int64_t i) { dispatch<gelu_backward_row>(x.row(i), dy.row(i), x.cols, dx.row(i)); });
}

void relu(Parallel& parallel, ConstRows x, Rows y) {
  for_rows(parallel, x.rows, x.cols, [&](std::int64_t i) { dispatch<relu_row>(x.row(i), x.cols, y.row(i)); });
}
void relu_backward(Parallel& parallel, ConstRows x, ConstRows dy, Rows dx) {
  for_rows(parallel, x.rows, x.cols,
           [&](std::int64_t i) { dispatch<relu_backward_row>(x.row(i), dy.row(i), x.cols, dx.row(i)); });
}

void swiglu(Parallel& parallel, ConstRows gate, ConstRows up, Rows y) {
  for_rows(parallel, gate.rows, gate.cols,
           [&](std::int64_t i) { dispatch<swiglu_row>(gate.row(i), up.row(i), gate.cols, y.row(i)); });
}
void swiglu_backward(Parallel& parallel, ConstRows gate, ConstRows up, ConstRows dy, Rows d_gate, Rows d_up) {
  for_rows(parallel, gate.rows, gate.cols, [&](std::int64_t i) {
    dispatch<swiglu_backward_row>(gate.row(i), up.row(i), dy.row(i), gate.cols, d_gate.row(i), d_up.row(i));
  });
}

}  // namespace cleave::kernels
