// ChunkRun: carries out a piece's operations on some rows of one sequence, with the bits that they have in any layout.
//
// Values are rounded to the wire type where tiles round them, whether they travel or not: operands of products and of
// attention, and their results. Norms, activations and sums of gradients stay in fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/packed_operand.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/pieces/program.hpp"

namespace cleave::pieces {

/// Where a parameter lies, row-major; products' weights rounded to the wire type.
using Parameters = std::function<kernels::ConstRows(TensorId)>;

/// What a sequence leaves at a piece from chunk to chunk: keys and values, rounded to the wire type, and on the way
/// back the sums of their gradients. [key/value heads][seq][head_dim] each; empty without attention.
struct SequenceState {
  KeptVector<float> keys, values, key_gradients, value_gradients;
  std::int64_t kept = 0;  ///< rows of keys and values that are there, from the first one on
  /// Gradients of the norm's gain, then of its bias, as sums over tokens (kernels/token_sums.hpp).
  KeptVector<std::int64_t> norm_sums{};
};

/// Values of a sequence at a piece that are kept from the way forward for the way back and for sums over tokens
/// (model::Piece::kept): all rows of each tensor, row-major.
class KeptValues {
 public:
  /// `pool` must outlive it.
  KeptValues(const Program& program, BlockPool& pool);

  /// Rows from t0 on; without data where the tensor is none of those.
  [[nodiscard]] kernels::Rows rows(TensorId tensor, std::int64_t t0, std::int64_t count) const;
  [[nodiscard]] Bytes bytes() const { return Bytes(static_cast<std::int64_t>(block_.capacity())); }

 private:
  const Program* program_;
  PooledBlock block_;
};

/// Memory of one chunk's values, used again for the next chunk's, of whatever piece: as one is computed after another,
/// runs share it.
class ChunkMemory {
 public:
  /// `pool` must outlive it.
  explicit ChunkMemory(BlockPool& pool) : pool_(&pool) {}
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;
  ~ChunkMemory() = default;
  /// What was given out before may be given out again.
  void reset() { block_ = used_ = 0; }
  /// Not initialised; it stays where it is until reset().
  [[nodiscard]] float* take(std::int64_t floats);

 private:
  BlockPool* pool_;
  std::vector<PooledBlock> blocks_;
  std::size_t block_ = 0, used_ = 0;  // the one that is in use, and bytes of it
};

/// What the softmax of some rows comes down to.
struct RowSums {
  KeptVector<float> top;         ///< each row's maximum
  KeptVector<double> sum, loss;  ///< of exp(logit - maximum); what the row adds to the loss
};

class ChunkRun {
 public:
  /// `program`, `parallel`, `memory` must outlive it. Another run on the same memory may begin once nobody reads this
  /// one's rows any more.
  ChunkRun(const Program& program, DType wire, kernels::Parallel& parallel, ChunkMemory& memory, Parameters parameters);

  /// From here on weights are packed once, at their first product, not for each chunk. `pool` must outlive it.
  void pack_weights(BlockPool& pool) { packs_ = &pool; }
  [[nodiscard]] Bytes packed() const;

  /// Makes room for a sequence's way forward, or back.
  [[nodiscard]] SequenceState open_forward() const;
  [[nodiscard]] SequenceState open_backward() const;

  /// From here on the rows are [t0, t0 + rows) of their sequence; values that are to be kept, or were, are in `kept`,
  /// which must outlive run(). Requires: as kernels::attention_forward_chunk.
  void begin(std::int64_t t0, std::int64_t rows, const KeptValues* kept = nullptr);
  /// The rows of a tensor are these, until the next begin(): what comes in and goes out need not be copied. A tensor
  /// that is kept stays where it is kept. Requires: as many as begin() said, all columns.
  void place(TensorId tensor, float* rows) { places_[tensor] = rows; }
  /// Memory of a tensor's rows, all of its columns. What run() is to read is put here first.
  [[nodiscard]] kernels::Rows rows_of(TensorId tensor);
  /// Requires: what the instructions read was written, or made by them. `targets`: of the head, one a row.
  /// Errors: CheckFailure where a product is not finite.
  void run(std::span<const Instruction> instructions, SequenceState& state, std::span<const std::int32_t> targets = {});
  /// Of a part of the head, once run() has made its columns of the logits' gradient: what they add to
  /// Program::gradient_product(), [rows][width]. `exponents`: of the weight's columns over the whole vocabulary.
  /// Errors: CheckFailure where it is not finite.
  void multiply_part(std::span<const std::int16_t> exponents, kernels::PartialSums sums);
  /// Keeps the rows' keys and values, which run() has made. Attention does it by itself where they are not kept yet.
  void keep_keys_values(SequenceState& state);
  /// Sum of the losses of the rows that the last cross-entropy saw.
  [[nodiscard]] double loss() const { return loss_; }
  /// Of these rows. Where they are known, run() need not have all logits of a row (Program::back with row_sums).
  [[nodiscard]] const RowSums& row_sums() const { return row_sums_; }
  void know_row_sums(std::span<const float> top, std::span<const double> sum);

 private:
  kernels::Rows view(const model::TensorView& of);
  [[nodiscard]] const float* vector(const model::TensorView& of) const;
  void run(const Instruction& instruction, SequenceState& state, std::span<const std::int32_t> targets);
  void multiply(const Instruction& instruction);
  std::span<const std::int16_t> exponents_of(const model::Operation& op, kernels::ConstMatrix b, const Columns& run);
  [[nodiscard]] kernels::ConstRows rounded(kernels::ConstRows operand);
  void norm_backward(const model::Operation& op, SequenceState& state);
  void lose(const Instruction& instruction, std::span<const std::int32_t> targets);
  template <class Body>
  void for_heads(const Instruction& instruction, const Body& body);
  void attend(const Instruction& instruction, SequenceState& state);
  void attend_backward(const Instruction& instruction, SequenceState& state);
  [[nodiscard]] std::int64_t keys_of_sequence() const;

  const Program& program_;
  DType wire_;
  kernels::Parallel& parallel_;
  Parameters parameters_;
  std::int64_t t0_ = 0, rows_ = 0;
  double loss_ = 0;
  RowSums row_sums_;
  bool knows_row_sums_ = false;
  const KeptValues* kept_ = nullptr;
  std::map<TensorId, float*> places_;
  ChunkMemory& memory_;
  std::map<TensorId, float*> rows_in_memory_;
  KeptVector<float> operand_;
  KeptVector<std::int16_t> row_exponents_;
  // Of weights, by operation and first column: they are the same for every chunk.
  std::map<std::pair<OpId, std::int64_t>, KeptVector<std::int16_t>> column_exponents_;
  BlockPool* packs_ = nullptr;
  std::map<OpId, kernels::PackedOperand> packed_;
  KeptVector<float> norm_gradients_;
  std::optional<kernels::RopeTable> rope_;
};

}  // namespace cleave::pieces
