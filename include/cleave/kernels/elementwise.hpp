// Additions of rows, biases and residuals, and rotary position embedding. Server kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// x(i,j) += bias[j], in place. x [rows, cols], bias [cols].
void add_bias(Parallel& parallel, Rows x, const float* bias);

/// d_bias[j] = sum over i of dy(i,j): fp32 within blocks of 64 rows, double between them, rounded once.
/// dy [rows, cols], d_bias [cols].
void bias_gradient(Parallel& parallel, ConstRows dy, float* d_bias);

/// out = a + b, all [rows, cols]. out may be a or b.
void add(Parallel& parallel, ConstRows a, ConstRows b, Rows out);

/// into += x, both [rows, cols].
void accumulate(Parallel& parallel, ConstRows x, Rows into);

/// Cosines and sines of the rotary embedding: angle(t, i) = t * theta^(-2i/hd), in double, rounded once. Requires:
/// head_dim is even. Source: Su et al. 2021 (RoFormer), with the pairs of Llama: (i, i + hd/2).
class RopeTable {
 public:
  RopeTable(std::int64_t seq, std::int64_t head_dim, double theta);
  [[nodiscard]] std::int64_t seq() const { return seq_; }
  [[nodiscard]] std::int64_t head_dim() const { return 2 * half_; }
  /// The table was made with these arguments.
  [[nodiscard]] bool is_for(std::int64_t seq, std::int64_t head_dim, double theta) const {
    return seq == seq_ && head_dim == 2 * half_ && theta == theta_;
  }
  [[nodiscard]] const float* cosines(std::int64_t t) const { return cosines_.data() + t * half_; }
  [[nodiscard]] const float* sines(std::int64_t t) const { return sines_.data() + t * half_; }

 private:
  std::int64_t seq_, half_;
  double theta_;
  std::vector<float> cosines_, sines_;  // [seq, hd/2]
};

enum class Rotate { forward, backward };

/// Rotates every head of every row in place: row r is position (first + r) mod seq, and its heads of hd columns follow
/// each other. Pairs are (i, i + hd/2): x'_i = x_i cos - x_(i+hd/2) sin, x'_(i+hd/2) = x_(i+hd/2) cos + x_i sin;
/// backward turns the other way, which maps the gradient of the output to that of the input. Requires: x.cols is a
/// multiple of head_dim.
void rope(Parallel& parallel, const RopeTable& table, Rotate direction, Rows x, std::int64_t first = 0);

}  // namespace cleave::kernels
