// One (sequence, key/value head) pair of an attention operation computed on the server, as a device would compute it.
//
// Used for pairs that no device can compute and for checking those that devices did: operands are rounded to the wire
// type, the calls are the device's, so the bits are the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/random.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/model/graph.hpp"
#include "tensor_store.hpp"

namespace cleave::server {

/// A tensor of an attention operation: with all query heads of a pair, or with its one key/value head.
struct PairTensor {
  model::TensorView view;
  bool queries = false;
};

/// Some of an attention operation's tensors, in the order of the messages.
class PairTensors {
 public:
  PairTensors(std::initializer_list<PairTensor> tensors) {
    for (const PairTensor& tensor : tensors) add(tensor);
  }
  void add(const PairTensor& tensor) { tensors_.at(count_++) = tensor; }
  [[nodiscard]] std::size_t size() const { return count_; }
  const PairTensor& operator[](std::size_t i) const { return tensors_[i]; }
  [[nodiscard]] auto begin() const { return tensors_.begin(); }
  [[nodiscard]] auto end() const { return tensors_.begin() + static_cast<std::ptrdiff_t>(count_); }

 private:
  std::array<PairTensor, 4> tensors_;
  std::size_t count_ = 0;
};

[[nodiscard]] PairTensors pair_operands(const model::Operation& op);
[[nodiscard]] PairTensors pair_results(const model::Operation& op);

/// Heads of the tensor that belong to one pair.
[[nodiscard]] inline std::int64_t heads_of(const AttentionShape& shape, bool queries) {
  return queries ? shape.queries_per_pair() : 1;
}

/// The view of head `h` of a pair: seq x head_dim.
[[nodiscard]] kernels::Rows pair_head(const AttentionShape& shape, std::int64_t pair, kernels::Rows all, bool queries,
                                      std::int64_t h);

class AttentionPair {
 public:
  /// `op` and `store` must outlive it. Requires: op is attention, forward or backward.
  AttentionPair(const model::Operation& op, TensorStore& store, DType wire);

  /// Computes the pair's results, rounded to the wire type.
  void compute(std::int64_t pair);
  /// Error of a pair's returned results, one payload each in the wire type, relative to what honest rounding may cost
  /// (kernels/attention_check.hpp): at most 1 for an honest pair.
  [[nodiscard]] double error_ratio(std::int64_t pair, std::span<const std::byte* const> payloads, const Random& random);
  /// Puts the computed pair's results into the operation's outputs.
  void place(std::int64_t pair);
  /// Whether result `i` of the computed pair has exactly these bytes in the wire type.
  [[nodiscard]] bool equals(std::size_t i, const std::byte* payload) const;
  /// Writes result `i` of the computed pair as a device would return it, result_bytes(i) bytes.
  void write(std::size_t i, std::byte* to) const;
  /// Bytes of result `i` of a pair on the wire.
  [[nodiscard]] std::int64_t result_bytes(std::size_t i) const;
  [[nodiscard]] std::size_t results() const { return results_.size(); }

 private:
  void load(std::int64_t pair);

  const model::Operation& op_;
  TensorStore& store_;
  DType wire_;
  kernels::PairShape shape_;
  PairTensors operands_, results_;
  std::array<KeptVector<float>, 4> in_;
  std::array<KeptVector<float>, 3> out_;
  KeptVector<float> scratch_;
};

}  // namespace cleave::server
