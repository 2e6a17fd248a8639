// The operations of GraphBuilder: what each emits forward, and backward when a gradient is wanted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "builder.hpp"

namespace cleave::model {

namespace {

TensorView row_range(TensorView view, std::int64_t row0, std::int64_t rows) {
  view.row0 += row0;
  view.rows = rows;
  return view;
}

}  // namespace

// y = E[token] + P[t + offset].   dE[token] += dy, dP[t + offset] += dy, in token order.
Value GraphBuilder::embed(const std::string& table, const std::string& positions, std::int64_t offset) {
  const Label label = this->label("embed");
  Parameter* const e = &parameter(table + ".weight");
  Parameter* const p = positions.empty() ? nullptr : &parameter(positions + ".weight");
  const TensorView tokens{graph_.tokens, 0, rows_, 0, 1};
  const TensorView y = new_tensor(label.name, TensorRole::activation, rows_, e->view.cols);
  const auto describe = [this, offset](Operation& op) {
    op.attention.batch = graph_.batch;
    op.attention.seq = graph_.seq;
    op.integer = offset;
  };
  std::vector<TensorView> in{tokens, e->view};
  if (p != nullptr) in.push_back(p->view);
  describe(emit(label, ".forward", OpKind::embed, Phase::forward, std::move(in), {y}));

  const bool want_e = use(e), want_p = use(p);
  return in_residual_stream(record(label, y, want_e || want_p, [=, this](const Gradient& dy) {
    std::vector<TensorView> out{want_e ? zeroed_gradient_of(*e) : TensorView{}};
    if (p != nullptr) out.push_back(want_p ? zeroed_gradient_of(*p) : TensorView{});
    describe(
        emit(label, ".backward", OpKind::embed_backward, Phase::weight_gradient, {tokens, dy.view}, std::move(out)));
    if (want_e) finish_use(*e);
    if (want_p) finish_use(*p);
  }));
}

//            forward     input gradient    weight gradient
// in_out:    Y = X W     dX = dY W^T       dW = X^T dY
// out_in:    Y = X W^T   dX = dY W         dW = dY^T X
Value GraphBuilder::linear(Value input, const std::string& name) {
  const Label label = this->label(name);
  const bool in_out = family_.layout == Layout::in_out;
  Parameter* const weight = &parameter(name + ".weight");
  Parameter* const bias = find(name + ".bias");
  const TensorView w = weight->view, x = read(input);
  const TensorView y = new_tensor(label.name, TensorRole::activation, rows_, in_out ? w.cols : w.rows);
  emit_gemm(label, ".forward", Phase::forward, x, false, w, !in_out, y);
  if (bias != nullptr) emit(label, ".bias", OpKind::add_bias, Phase::forward, {bias->view}, {y});

  const bool want_x = needs(input), want_w = use(weight), want_b = use(bias);
  return record(label, y, want_x || want_w || want_b, [=, this](const Gradient& dy) {
    if (want_x) {
      const TensorView dx = gradient_target(input, label);
      emit_gemm(label, ".input_gradient", Phase::input_gradient, dy.view, false, w, in_out, dx);
      contribute(input, {dx, true});
    }
    if (want_w) {
      const bool accumulate = weight->gradient.valid();
      const TensorView dw = gradient_of(*weight);
      const auto& [a, b] = in_out ? std::pair(x, dy.view) : std::pair(dy.view, x);
      emit_gemm(label, ".weight_gradient", Phase::weight_gradient, a, true, b, false, dw, accumulate);
      finish_use(*weight);
    }
    if (want_b) {
      CLEAVE_ASSERT(!bias->gradient.valid(), "{} has one reader", label.name);
      emit(label, ".bias_gradient", OpKind::bias_gradient, Phase::weight_gradient, {dy.view}, {gradient_of(*bias)});
      finish_use(*bias);
    }
  });
}

Value GraphBuilder::layer_norm(Value x, const std::string& name) {
  return normalize(x, name, OpKind::layer_norm, OpKind::layer_norm_backward);
}

Value GraphBuilder::rms_norm(Value x, const std::string& name) {
  return normalize(x, name, OpKind::rms_norm, OpKind::rms_norm_backward);
}

// LayerNorm has a bias and keeps mean and rstd of every row; RMSNorm has neither bias nor mean.
Value GraphBuilder::normalize(Value input, const std::string& name, OpKind forward, OpKind backward) {
  const Label label = this->label(name);
  const bool centered = forward == OpKind::layer_norm;
  Parameter* const gain = &parameter(name + ".weight");
  Parameter* const bias = centered ? &parameter(name + ".bias") : nullptr;
  const TensorView x = read(input);
  const TensorView y = new_tensor(label.name, TensorRole::activation, rows_, x.cols);
  std::vector<TensorView> statistics;
  if (centered) statistics.push_back(new_tensor(label.name + ".mean", TensorRole::activation, rows_, 1));
  statistics.push_back(new_tensor(label.name + ".rstd", TensorRole::activation, rows_, 1));

  std::vector<TensorView> in{x, gain->view}, out{y};
  if (centered) in.push_back(bias->view);
  out.insert(out.end(), statistics.begin(), statistics.end());
  emit(label, ".forward", forward, Phase::forward, std::move(in), std::move(out)).scalar = config_.norm_eps;

  const bool want_x = needs(input), want_gain = use(gain), want_bias = use(bias);
  return record(label, y, want_x || want_gain || want_bias, [=, this](const Gradient& dy) {
    std::vector<TensorView> from{dy.view, x, gain->view};
    from.insert(from.end(), statistics.begin(), statistics.end());
    std::vector<TensorView> to{want_x ? gradient_target(input, label) : TensorView{},
                               want_gain ? gradient_of(*gain) : TensorView{}};
    if (centered) to.push_back(want_bias ? gradient_of(*bias) : TensorView{});
    if (want_x) contribute(input, {to.front(), true});
    emit(label, ".backward", backward, Phase::input_gradient, std::move(from), std::move(to)).scalar = config_.norm_eps;
    if (want_gain) finish_use(*gain);
    if (want_bias) finish_use(*bias);
  });
}

std::array<Value, 3> GraphBuilder::split3(Value x) {
  const TensorView all = read(x);
  CLEAVE_ASSERT(all.cols % 3 == 0, "{} columns", all.cols);
  std::array<Value, 3> parts;
  for (std::size_t i = 0; i < 3; ++i) {
    TensorView part = all;
    part.cols = all.cols / 3;
    part.col0 = all.col0 + static_cast<std::int64_t>(i) * part.cols;
    // The consumer of a part writes straight into its columns of the gradient of x (gradient_target).
    parts[i] = record(nodes_[x.node].label, part, needs(x), [this, x](const Gradient& dy) {
      const std::vector<Gradient>& whole = nodes_[x.node].gradients;
      CLEAVE_ASSERT(whole.size() == 1 && whole.front().view.tensor == dy.view.tensor, "a part has one consumer");
    });
    nodes_[parts[i].node].is_slice = true;
    nodes_[parts[i].node].parent = x.node;
  }
  return parts;
}

Value GraphBuilder::attention(Value query, Value key, Value value, const std::string& name) {
  const Label label = this->label(name);
  const AttentionShape shape{graph_.batch, graph_.seq, config_.n_head, config_.n_kv_head, config_.head_dim()};
  const TensorView q = read(query), k = read(key), v = read(value);
  const TensorView o = new_tensor(label.name, TensorRole::activation, rows_, q.cols);
  emit(label, ".forward", OpKind::attention_forward, Phase::forward, {q, k, v}, {o}).attention = shape;

  const bool want = needs(query) || needs(key) || needs(value);
  return record(label, o, want, [=, this](const Gradient& dy) {
    // All three are written even where one is not wanted: a device computes them together.
    const TensorView dq = gradient_target(query, label), dk = gradient_target(key, label),
                     dv = gradient_target(value, label);
    emit(label, ".backward", OpKind::attention_backward, Phase::input_gradient, {q, k, v, dy.view}, {dq, dk, dv})
        .attention = shape;
    contribute(query, {dq, true});
    contribute(key, {dk, true});
    contribute(value, {dv, true});
  });
}

Value GraphBuilder::rope(Value input, const std::string& name) {
  const Label label = this->label(name);
  const TensorView x = nodes_[input.node].view;
  const auto describe = [this, heads = x.cols / config_.head_dim()](Operation& op) {
    op.attention = {graph_.batch, graph_.seq, heads, heads, config_.head_dim()};
    op.scalar = config_.rope_theta;
    op.integer = config_.head_dim();
  };
  const Value y = record_in_place(label, input, [=, this](const Gradient& dy) {
    CLEAVE_ASSERT(dy.owned, "{} rotates a gradient that others read", label.name);
    describe(emit(label, ".backward", OpKind::rope_backward, Phase::input_gradient, {}, {dy.view}));
    contribute(input, dy);
  });
  describe(emit(label, ".forward", OpKind::rope, Phase::forward, {}, {x}));
  return y;
}

Value GraphBuilder::gelu(Value input, const std::string& name) {
  const Label label = this->label(name);
  const TensorView x = read(input);
  const TensorView y = new_tensor(label.name, TensorRole::activation, rows_, x.cols);
  emit(label, ".forward", OpKind::gelu, Phase::forward, {x}, {y});
  return record(label, y, needs(input), [=, this](const Gradient& dy) {
    CLEAVE_ASSERT(dy.owned, "{} overwrites a gradient that others read", label.name);
    emit(label, ".backward", OpKind::gelu_backward, Phase::input_gradient, {dy.view, x}, {dy.view});
    contribute(input, dy);
  });
}

// The sign of y is the sign of x wherever it matters, so y can take x's place.
Value GraphBuilder::relu(Value input, const std::string& name) {
  const Label label = this->label(name);
  const TensorView y = nodes_[input.node].view;
  const Value output = record_in_place(label, input, [=, this](const Gradient& dy) {
    CLEAVE_ASSERT(dy.owned, "{} overwrites a gradient that others read", label.name);
    emit(label, ".backward", OpKind::relu_backward, Phase::input_gradient, {dy.view, y}, {dy.view});
    contribute(input, dy);
  });
  emit(label, ".forward", OpKind::relu, Phase::forward, {y}, {y});
  ++nodes_[output.node].readers;  // the backward pass
  return output;
}

Value GraphBuilder::swiglu(Value gate, Value up, const std::string& name) {
  const Label label = this->label(name);
  const TensorView g = read(gate), u = read(up);
  const TensorView y = new_tensor(label.name, TensorRole::activation, rows_, g.cols);
  emit(label, ".forward", OpKind::swiglu, Phase::forward, {g, u}, {y});
  return record(label, y, needs(gate) || needs(up), [=, this](const Gradient& dy) {
    const TensorView dg = gradient_target(gate, label), du = gradient_target(up, label);
    emit(label, ".backward", OpKind::swiglu_backward, Phase::input_gradient, {dy.view, g, u}, {dg, du});
    contribute(gate, {dg, true});
    contribute(up, {du, true});
  });
}

// Both summands get the gradient of the sum itself, without a copy; nobody may write to it then.
Value GraphBuilder::add(Value x, Value y, const std::string& name) {
  const Label label = this->label(name);
  const TensorView a = read(x), b = read(y);
  const TensorView sum = new_tensor(label.name, TensorRole::activation, rows_, a.cols);
  emit(label, ".forward", OpKind::add, Phase::forward, {a, b}, {sum});
  return in_residual_stream(record(label, sum, needs(x) || needs(y), [=, this](const Gradient& dy) {
    contribute(x, {dy.view, false});
    contribute(y, {dy.view, false});
  }));
}

std::int64_t GraphBuilder::loss_chunk_rows() const {
  if (options_.loss_rows > 0) return std::min(options_.loss_rows, rows_);
  const std::int64_t row_bytes = 4 * config_.vocab_size;
  const std::int64_t budget = std::max(kLogitsBudget, 4 * config_.d_model * row_bytes);
  if (rows_ <= budget / row_bytes) return rows_;
  const std::int64_t most = std::max<std::int64_t>(1, budget / 2 / row_bytes);
  return most > kBlockK ? most - most % kBlockK : most;  // a depth of whole K blocks for dE
}

// Per chunk of rows:  Z = X E^T;  loss += sum of CE(Z);  Z <- dZ = (softmax(Z) - onehot) / (B T);  dX = dZ E;
// dE (+)= dZ^T X. The gradients are taken at once, so that no more than two chunks of logits ever exist: two buffers,
// used in turn, let the next chunk's product begin while the last one's gradients are still under way.
void GraphBuilder::loss(Value input, const std::string& head) {
  const Label label = this->label("lm_head");
  Parameter* const e = &parameter(head + ".weight");
  const TensorView x = read(input), loss{graph_.loss, 0, 1, 0, 1};
  const bool want_x = needs(input), want_e = use(e);
  const TensorView dx = want_x ? gradient_target(input, label) : TensorView{};
  const std::int64_t chunk_rows = loss_chunk_rows(), chunks = (rows_ + chunk_rows - 1) / chunk_rows;
  const double loss_scale = std::ldexp(1.0, graph_.loss_bits) / static_cast<double>(rows_);
  std::array<TensorView, 2> buffers;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::int64_t row0 = c * chunk_rows, rows = std::min(chunk_rows, rows_ - row0);
    const Label part_label{chunks == 1 ? label.name : fmt::format("{}.chunk{}", label.name, c), label.type};
    TensorView& buffer = buffers[static_cast<std::size_t>(c % 2)];
    if (!buffer.valid())
      buffer = new_tensor(fmt::format("logits.{}", c), TensorRole::activation, chunk_rows, config_.vocab_size);
    const TensorView logits = row_range(buffer, 0, rows), part = row_range(x, row0, rows);
    const TensorView targets{graph_.targets, row0, rows, 0, 1};
    const auto enter_loss = [&](OpKind kind, std::vector<TensorView> out) {
      Operation& op = emit(part_label, ".loss", kind, Phase::forward, {logits, targets}, std::move(out));
      op.scalar = loss_scale;
      op.accumulate = c > 0;
    };
    emit_gemm(part_label, ".forward", Phase::forward, part, false, e->view, true, logits);
    if (!want_x && !want_e) {
      enter_loss(OpKind::cross_entropy_loss, {loss});
      graph_.logits = buffer.tensor;
      continue;
    }
    enter_loss(OpKind::cross_entropy, {loss, logits});
    if (want_x) {
      Operation& product = emit_gemm(part_label, ".input_gradient", Phase::input_gradient, logits, false, e->view,
                                     false, row_range(dx, row0, rows));
      // Of softmax - target, elements of the first add up to 1.
      if (vocabulary_blocks(config_.vocab_size) > 1) product.row_bound = std::sqrt(2.0) * loss_scale;
    }
    if (want_e) {
      const bool accumulate = e->gradient.valid();
      const TensorView de = gradient_of(*e);
      emit_gemm(part_label, ".weight_gradient", Phase::weight_gradient, logits, true, part, false, de, accumulate);
    }
  }
  if (want_x) contribute(input, {dx, true});
  if (want_e) finish_use(*e);
}

}  // namespace cleave::model
