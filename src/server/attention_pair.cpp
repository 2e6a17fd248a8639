// Contiguous copies in, the device's kernels, contiguous results out.
#include "attention_pair.hpp"

#include <cstring>

#include "blocks.hpp"
#include "cleave/kernels/attention_check.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::server {

PairTensors pair_operands(const model::Operation& op) {
  PairTensors list{{op.in[0], true}, {op.in[1], false}, {op.in[2], false}};
  if (op.kind == model::OpKind::attention_backward) list.add({op.in[3], true});
  return list;
}

PairTensors pair_results(const model::Operation& op) {
  PairTensors list{{op.out[0], true}};
  if (op.kind == model::OpKind::attention_backward) {
    list.add({op.out[1], false});
    list.add({op.out[2], false});
  }
  return list;
}

kernels::Rows pair_head(const AttentionShape& shape, std::int64_t pair, kernels::Rows all, bool queries,
                        std::int64_t h) {
  const std::int64_t sequence = pair / shape.n_kv_head, group = pair % shape.n_kv_head;
  const std::int64_t head = group * heads_of(shape, queries) + h;
  return {all.row(sequence * shape.seq) + head * shape.head_dim, shape.seq, shape.head_dim, all.ld};
}

AttentionPair::AttentionPair(const model::Operation& op, TensorStore& store, DType wire)
    : op_(op),
      store_(store),
      wire_(wire),
      shape_{op.attention.queries_per_pair(), op.attention.seq, op.attention.head_dim},
      operands_(pair_operands(op)),
      results_(pair_results(op)) {
  const auto size = [&](const PairTensor& t) {
    return static_cast<std::size_t>(heads_of(op.attention, t.queries) * shape_.seq * shape_.head_dim);
  };
  for (std::size_t i = 0; i < operands_.size(); ++i) in_[i].resize(size(operands_[i]));
  for (std::size_t i = 0; i < results_.size(); ++i) out_[i].resize(size(results_[i]));
  const bool backward = op.kind == model::OpKind::attention_backward;
  const Bytes scratch =
      backward ? kernels::attention_backward_scratch(shape_) : kernels::attention_forward_scratch(shape_);
  scratch_.resize(static_cast<std::size_t>(scratch.value()) / sizeof(float));
}

void AttentionPair::load(std::int64_t pair) {
  const std::int64_t head = shape_.seq * shape_.head_dim;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const std::int64_t heads = heads_of(op_.attention, operands_[i].queries);
    for (std::int64_t h = 0; h < heads; ++h) {
      const kernels::Rows from =
          pair_head(op_.attention, pair, store_.rows(operands_[i].view), operands_[i].queries, h);
      gather({from.data, from.ld}, from.rows, from.cols, DType::f32,
             reinterpret_cast<std::byte*>(in_[i].data() + h * head));
    }
    kernels::round_to(wire_, kernels::Rows(in_[i].data(), heads * shape_.seq, shape_.head_dim));
  }
}

void AttentionPair::compute(std::int64_t pair) {
  load(pair);
  if (op_.kind == model::OpKind::attention_forward) {
    kernels::attention_forward(shape_, in_[0].data(), in_[1].data(), in_[2].data(), out_[0].data(), scratch_);
  } else {
    kernels::attention_backward(shape_, in_[0].data(), in_[1].data(), in_[2].data(), in_[3].data(), out_[0].data(),
                                out_[1].data(), out_[2].data(), scratch_);
  }
  for (std::size_t i = 0; i < results_.size(); ++i) {
    kernels::round_to(wire_, kernels::Rows(out_[i].data(), static_cast<std::int64_t>(out_[i].size()) / shape_.head_dim,
                                           shape_.head_dim));
  }
}

double AttentionPair::error_ratio(std::int64_t pair, std::span<const std::byte* const> payloads, const Random& random) {
  load(pair);
  std::array<const float*, 3> results{};
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const std::int64_t cols = shape_.head_dim, rows = static_cast<std::int64_t>(out_[i].size()) / cols;
    results[i] = reinterpret_cast<const float*>(payloads[i]);
    if (wire_ == DType::f32) continue;
    scatter(payloads[i], wire_, false, kernels::Rows(out_[i].data(), rows, cols));
    results[i] = out_[i].data();
  }
  if (op_.kind == model::OpKind::attention_forward) {
    return kernels::check_attention_forward(shape_, in_[0].data(), in_[1].data(), in_[2].data(), results[0], wire_,
                                            random, scratch_);
  }
  return kernels::check_attention_backward(shape_, in_[0].data(), in_[1].data(), in_[2].data(), in_[3].data(),
                                           results[0], results[1], results[2], wire_, random, scratch_);
}

void AttentionPair::place(std::int64_t pair) {
  const std::int64_t head = shape_.seq * shape_.head_dim;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const kernels::Rows all = store_.rows(results_[i].view);
    for (std::int64_t h = 0; h < heads_of(op_.attention, results_[i].queries); ++h) {
      scatter(reinterpret_cast<const std::byte*>(out_[i].data() + h * head), DType::f32, false,
              pair_head(op_.attention, pair, all, results_[i].queries, h));
    }
  }
}

std::int64_t AttentionPair::result_bytes(std::size_t i) const {
  return static_cast<std::int64_t>(out_[i].size()) * size_of(wire_);
}

bool AttentionPair::equals(std::size_t i, const std::byte* payload) const {
  const std::int64_t cols = shape_.head_dim, rows = static_cast<std::int64_t>(out_[i].size()) / cols;
  KeptVector<std::byte> expected(static_cast<std::size_t>(result_bytes(i)));
  gather({out_[i].data(), cols}, rows, cols, wire_, expected.data());
  return std::memcmp(expected.data(), payload, expected.size()) == 0;
}

void AttentionPair::write(std::size_t i, std::byte* to) const {
  const std::int64_t cols = shape_.head_dim, rows = static_cast<std::int64_t>(out_[i].size()) / cols;
  gather({out_[i].data(), cols}, rows, cols, wire_, to);
}

}  // namespace cleave::server
