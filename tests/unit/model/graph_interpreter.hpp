// Runs a StepGraph in double precision with the plainest loops, in any order that `after` allows.
//
// It shows that a graph means what its family claims, without the kernels. Every operation is written from its formula
// in graph.hpp. Memory starts as not-a-number, so whatever is read before it is written shows.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::model {

class GraphInterpreter {
 public:
  explicit GraphInterpreter(const StepGraph& graph) : graph_(graph), memory_(graph.tensors.size()) { forget(); }

  std::vector<double>& memory(TensorId id) { return memory_[static_cast<std::size_t>(id.value)]; }

  /// The gradient of a parameter after run(); empty when it has none.
  std::vector<double> gradient(TensorId parameter) {
    for (const TensorSpec& spec : graph_.tensors) {
      if (spec.role == TensorRole::gradient && spec.parameter == parameter) return memory(spec.id);
    }
    return {};
  }

  /// Runs all operations but AdamW; among those that may start, `seed` chooses.
  void run(unsigned seed) {
    forget();
    std::mt19937 random(seed);
    std::vector<std::size_t> waits(graph_.operations.size());
    std::vector<std::vector<std::size_t>> followers(graph_.operations.size());
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      waits[i] = graph_.operations[i].after.size();
      for (const OpId before : graph_.operations[i].after)
        followers[static_cast<std::size_t>(before.value)].push_back(i);
      if (waits[i] == 0) ready.push_back(i);
    }
    while (!ready.empty()) {
      std::swap(ready[random() % ready.size()], ready.back());
      const std::size_t next = ready.back();
      ready.pop_back();
      execute(graph_.operations[next]);
      for (const std::size_t follower : followers[next]) {
        if (--waits[follower] == 0) ready.push_back(follower);
      }
    }
  }

 private:
  struct Matrix {
    double* data;
    std::int64_t stride, rows, cols;
    double& operator()(std::int64_t i, std::int64_t j) const { return data[i * stride + j]; }
    explicit operator bool() const { return data != nullptr; }
  };

  void forget() {
    for (const TensorSpec& spec : graph_.tensors) {
      if (spec.role == TensorRole::parameter || spec.role == TensorRole::tokens || spec.role == TensorRole::targets) {
        memory(spec.id).resize(static_cast<std::size_t>(spec.elements()));
      } else {
        memory(spec.id).assign(static_cast<std::size_t>(spec.elements()), std::numeric_limits<double>::quiet_NaN());
      }
    }
  }

  Matrix at(const std::vector<TensorView>& views, std::size_t i) {
    if (i >= views.size() || !views[i].valid()) return {nullptr, 0, 0, 0};
    const TensorView& view = views[i];
    const std::int64_t stride = graph_.tensor(view.tensor).cols;
    return {memory(view.tensor).data() + view.row0 * stride + view.col0, stride, view.rows, view.cols};
  }

  template <class F>
  static void each(const Matrix& x, F&& f) {
    for (std::int64_t i = 0; i < x.rows; ++i) {
      for (std::int64_t j = 0; j < x.cols; ++j) f(i, j);
    }
  }

  void execute(const Operation& op) {
    const Matrix a = at(op.in, 0), b = at(op.in, 1), c = at(op.in, 2), y = at(op.out, 0), z = at(op.out, 1);
    switch (op.kind) {
      case OpKind::gemm:
        each(y, [&](auto i, auto j) {
          double sum = op.accumulate ? y(i, j) : 0;
          for (std::int64_t k = 0; k < op.gemm.k; ++k) {
            sum += (op.trans_a ? a(k, i) : a(i, k)) * (op.trans_b ? b(j, k) : b(k, j));
          }
          y(i, j) = sum;
        });
        break;
      case OpKind::attention_forward: attention(op, a, b, c, y, {}, {}, {}, {}); break;
      case OpKind::attention_backward: attention(op, a, b, c, {}, at(op.in, 3), y, z, at(op.out, 2)); break;
      case OpKind::embed:
        each(y, [&](auto i, auto j) { y(i, j) = b(row(a, i), j) + (c ? c(i % graph_.seq + op.integer, j) : 0); });
        break;
      case OpKind::embed_backward:
        each(b, [&](auto i, auto j) {
          if (y) y(row(a, i), j) += b(i, j);
          if (z) z(i % graph_.seq + op.integer, j) += b(i, j);
        });
        break;
      case OpKind::layer_norm:
      case OpKind::rms_norm: normalize(op, a, b, c, y); break;
      case OpKind::layer_norm_backward:
      case OpKind::rms_norm_backward: normalize_backward(op); break;
      case OpKind::add_bias: each(y, [&](auto i, auto j) { y(i, j) += a(0, j); }); break;
      case OpKind::bias_gradient:
        each(y, [&](auto, auto j) { y(0, j) = 0; });
        each(a, [&](auto i, auto j) { y(0, j) += a(i, j); });
        break;
      case OpKind::gelu:
        each(y, [&](auto i, auto j) { y(i, j) = 0.5 * a(i, j) * (1 + std::tanh(inner(a(i, j)))); });
        break;
      case OpKind::gelu_backward:
        each(y, [&](auto i, auto j) {
          const double x = b(i, j), t = std::tanh(inner(x));
          const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
          y(i, j) = a(i, j) * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope);
        });
        break;
      case OpKind::relu: each(y, [&](auto i, auto j) { y(i, j) = a(i, j) > 0 ? a(i, j) : 0; }); break;
      case OpKind::relu_backward: each(y, [&](auto i, auto j) { y(i, j) = b(i, j) > 0 ? a(i, j) : 0; }); break;
      case OpKind::swiglu: each(y, [&](auto i, auto j) { y(i, j) = a(i, j) * sigmoid(a(i, j)) * b(i, j); }); break;
      case OpKind::swiglu_backward:
        each(y, [&](auto i, auto j) {
          const double g = b(i, j), s = sigmoid(g);
          y(i, j) = a(i, j) * c(i, j) * s * (1 + g * (1 - s));
          z(i, j) = a(i, j) * g * s;
        });
        break;
      case OpKind::rope: rotate(op, y, 1); break;
      case OpKind::rope_backward: rotate(op, y, -1); break;
      case OpKind::add: each(y, [&](auto i, auto j) { y(i, j) = a(i, j) + b(i, j); }); break;
      case OpKind::accumulate: each(y, [&](auto i, auto j) { y(i, j) += a(i, j); }); break;
      case OpKind::zero: each(y, [&](auto i, auto j) { y(i, j) = 0; }); break;
      case OpKind::cross_entropy:
      case OpKind::cross_entropy_loss: cross_entropy(op, a, b, y, z); break;
      case OpKind::square_norm:
        y(0, 0) = 0;
        each(a, [&](auto i, auto j) { y(0, 0) += a(i, j) * a(i, j); });
        break;
      case OpKind::global_norm: {
        double sum = 0;
        for (std::size_t i = 0; i < op.in.size(); ++i) sum += at(op.in, i)(0, 0);
        y(0, 0) = std::sqrt(sum);
        break;
      }
      case OpKind::adamw: break;
    }
  }

  static std::int64_t row(const Matrix& tokens, std::int64_t i) { return static_cast<std::int64_t>(tokens(i, 0)); }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static double inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

  void normalize(const Operation& op, const Matrix& x, const Matrix& gain, const Matrix& bias, const Matrix& y) {
    const bool centered = op.kind == OpKind::layer_norm;
    const Matrix means = centered ? at(op.out, 1) : Matrix{}, rstds = at(op.out, centered ? 2 : 1);
    const auto n = static_cast<double>(x.cols);
    for (std::int64_t i = 0; i < x.rows; ++i) {
      double mean = 0, square = 0;
      for (std::int64_t j = 0; centered && j < x.cols; ++j) mean += x(i, j) / n;
      for (std::int64_t j = 0; j < x.cols; ++j) square += (x(i, j) - mean) * (x(i, j) - mean) / n;
      const double rstd = 1 / std::sqrt(square + op.scalar);
      for (std::int64_t j = 0; j < x.cols; ++j) {
        y(i, j) = (x(i, j) - mean) * rstd * gain(0, j) + (centered ? bias(0, j) : 0);
      }
      if (centered) means(i, 0) = mean;
      rstds(i, 0) = rstd;
    }
  }

  void normalize_backward(const Operation& op) {
    const bool centered = op.kind == OpKind::layer_norm_backward;
    const Matrix dy = at(op.in, 0), x = at(op.in, 1), gain = at(op.in, 2), dx = at(op.out, 0), dgain = at(op.out, 1),
                 dbias = at(op.out, 2), mean = centered ? at(op.in, 3) : Matrix{}, rstd = at(op.in, centered ? 4 : 3);
    const auto n = static_cast<double>(x.cols);
    for (std::int64_t j = 0; j < x.cols; ++j) {
      if (dgain) dgain(0, j) = 0;
      if (dbias) dbias(0, j) = 0;
    }
    for (std::int64_t i = 0; i < x.rows; ++i) {
      const auto unit = [&](std::int64_t j) { return (x(i, j) - (centered ? mean(i, 0) : 0)) * rstd(i, 0); };
      double mean_g = 0, mean_gx = 0;
      for (std::int64_t j = 0; j < x.cols; ++j) {
        if (centered) mean_g += dy(i, j) * gain(0, j) / n;
        mean_gx += dy(i, j) * gain(0, j) * unit(j) / n;
        if (dgain) dgain(0, j) += dy(i, j) * unit(j);
        if (dbias) dbias(0, j) += dy(i, j);
      }
      for (std::int64_t j = 0; dx && j < x.cols; ++j) {
        dx(i, j) = rstd(i, 0) * (dy(i, j) * gain(0, j) - mean_g - unit(j) * mean_gx);
      }
    }
  }

  void rotate(const Operation& op, const Matrix& x, double sign) {
    const std::int64_t hd = op.integer;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t h = 0; h < x.cols; h += hd) {
        for (std::int64_t i = 0; i < hd / 2; ++i) {
          const double angle = sign * static_cast<double>(r % op.attention.seq) *
                               std::pow(op.scalar, -2.0 * static_cast<double>(i) / static_cast<double>(hd));
          const double u = x(r, h + i), v = x(r, h + i + hd / 2);
          x(r, h + i) = u * std::cos(angle) - v * std::sin(angle);
          x(r, h + i + hd / 2) = v * std::cos(angle) + u * std::sin(angle);
        }
      }
    }
  }

  // Forward when o is given, backward when dO is.
  static void attention(const Operation& op, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& o,
                        const Matrix& d_o, const Matrix& dq, const Matrix& dk, const Matrix& dv) {
    const AttentionShape& s = op.attention;
    const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    for (const Matrix& into : {o, dq, dk, dv}) {
      if (into) each(into, [&](auto i, auto j) { into(i, j) = 0; });
    }
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.n_head; ++h) {
        const std::int64_t cq = h * s.head_dim, ck = h / s.queries_per_pair() * s.head_dim, r0 = b * s.seq;
        for (std::int64_t t = 0; t < s.seq; ++t) {
          std::vector<double> p(static_cast<std::size_t>(t + 1)), dp(p.size());
          double total = 0, mean_dp = 0;
          const auto each_key = [&](auto&& f) {
            for (std::int64_t j = 0; j <= t; ++j) f(static_cast<std::size_t>(j), r0 + j);
          };
          const auto each_feature = [&](auto&& f) {
            for (std::int64_t i = 0; i < s.head_dim; ++i) f(cq + i, ck + i);
          };
          const std::int64_t r = r0 + t;
          each_key([&](std::size_t j, std::int64_t rj) {
            double score = 0;
            each_feature([&](auto x, auto y) { score += scale * q(r, x) * k(rj, y); });
            total += p[j] = std::exp(score);
          });
          each_key([&](std::size_t j, std::int64_t rj) {
            p[j] /= total;
            if (o) each_feature([&](auto x, auto y) { o(r, x) += p[j] * v(rj, y); });
            if (d_o) each_feature([&](auto x, auto y) { dp[j] += d_o(r, x) * v(rj, y); });
            mean_dp += p[j] * dp[j];
          });
          if (!d_o) continue;
          each_key([&](std::size_t j, std::int64_t rj) {
            const double ds = scale * p[j] * (dp[j] - mean_dp);
            each_feature([&](auto x, auto y) {
              dq(r, x) += ds * k(rj, y);
              dk(rj, y) += ds * q(r, x);
              dv(rj, y) += p[j] * d_o(r, x);
            });
          });
        }
      }
    }
  }

  static void cross_entropy(const Operation& op, const Matrix& logits, const Matrix& targets, const Matrix& loss,
                            const Matrix& gradient) {
    if (!op.accumulate) loss(0, 0) = 0;
    for (std::int64_t i = 0; i < logits.rows; ++i) {
      double total = 0;
      for (std::int64_t j = 0; j < logits.cols; ++j) total += std::exp(logits(i, j));
      loss(0, 0) += std::log(total) - logits(i, row(targets, i));
      for (std::int64_t j = 0; gradient && j < logits.cols; ++j) {
        gradient(i, j) = op.scalar * (std::exp(logits(i, j)) / total - (j == row(targets, i) ? 1 : 0));
      }
    }
  }

  const StepGraph& graph_;
  std::vector<std::vector<double>> memory_;  // by tensor; tokens and targets as doubles
};

}  // namespace cleave::model
