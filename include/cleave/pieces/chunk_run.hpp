// ChunkRun: carries out a piece's operations on some rows of one sequence, with the same bits as in any other layout.
//
// Operands and results of products and of attention are rounded to the wire type, as they are in tiles, whether they
// travel or not, and the residual stream and its gradient to the type that they have between stages. Norms, activations
// and sums of gradients stay in fp32.
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

/// Gives the values of a parameter, row-major; weights of products are rounded to the wire type.
using Parameters = std::function<kernels::ConstRows(TensorId)>;

/// What a piece carries from chunk to chunk of one sequence.
struct SequenceState {
  /// [key/value heads][seq][head_dim] each; empty without attention. Keys and values are rounded to the wire type. The
  /// gradients are sums over the chunks so far of a backward pass.
  KeptVector<float> keys, values, key_gradients, value_gradients;
  std::int64_t kept = 0;  ///< rows [0, kept) of keys and values are there
  /// Gradients of the norm's gain, then of its bias, as sums over tokens in units of 2^-50 (kernels/token_sums.hpp).
  KeptVector<std::int64_t> norm_sums{};
};

/// Values of one sequence at a piece that are kept from the forward pass for the backward pass and for sums over tokens
/// (model::Piece::kept): all rows of each tensor, row-major, in fp32. Move-only.
class KeptValues {
 public:
  /// Not initialised. Requires: `program` and `pool` outlive it. Errors: std::bad_alloc.
  KeptValues(const Program& program, BlockPool& pool);

  /// Rows [t0, t0 + count) of a tensor; a view without data where the tensor is none of Program::kept().
  [[nodiscard]] kernels::Rows rows(TensorId tensor, std::int64_t t0, std::int64_t count) const;
  [[nodiscard]] Bytes bytes() const { return Bytes(static_cast<std::int64_t>(block_.capacity())); }

 private:
  const Program* program_;
  PooledBlock block_;
};

/// Memory for the values of the chunk that is being computed. ChunkRuns that compute one after another share it.
class ChunkMemory {
 public:
  /// Requires: `pool` outlives it.
  explicit ChunkMemory(BlockPool& pool) : pool_(&pool) {}
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;
  ~ChunkMemory() = default;
  /// Ends the use of all memory that take() has returned.
  void reset() { block_ = used_ = 0; }
  /// Memory for so many floats, aligned to 64 bytes, not initialised, valid until reset(). Errors: std::bad_alloc.
  [[nodiscard]] float* take(std::int64_t floats);

 private:
  BlockPool* pool_;
  std::vector<PooledBlock> blocks_;
  std::size_t block_ = 0, used_ = 0;  // the one that is in use, and bytes of it
};

/// Statistics of the logits of some rows (kernels::cross_entropy_rows()).
struct RowSums {
  KeptVector<float> top;         ///< each row's maximum
  KeptVector<double> sum, loss;  ///< each row's sum of exp(logit - maximum); each row's loss
};

/// See the file comment. Use: begin() a chunk, place() or write what comes in, run() instructions, read rows_of() what
/// they give.
class ChunkRun {
 public:
  /// Requires: `program`, `parallel` and `memory` outlive it. begin() of another run on the same memory ends the use of
  /// this run's rows.
  ChunkRun(const Program& program, DType wire, kernels::Parallel& parallel, ChunkMemory& memory, Parameters parameters);

  /// From now on a weight is packed once, at its first product, and not for each chunk. Requires: `pool` outlives the
  /// run.
  void pack_weights(BlockPool& pool) { packs_ = &pool; }
  /// Bytes of the packed weights.
  [[nodiscard]] Bytes packed() const;

  /// The state of a sequence before its first chunk: for a forward pass, or for a backward pass.
  [[nodiscard]] SequenceState open_forward() const;
  [[nodiscard]] SequenceState open_backward() const;

  /// Begins a chunk: rows [t0, t0 + rows) of a sequence. Values of tensors of Program::kept() are written to and read
  /// from `kept`, if given; it must live until the chunk's last run(). Requires: t0, rows as
  /// kernels::attention_forward_chunk().
  void begin(std::int64_t t0, std::int64_t rows, const KeptValues* kept = nullptr);
  /// Sets where the chunk's rows of a tensor lie, until the next begin(), so that inputs and outputs need no copy. It
  /// has no effect on a tensor that is in `kept`. rows: [rows of the chunk, all columns of the tensor], contiguous.
  void place(TensorId tensor, float* rows) { places_[tensor] = rows; }
  /// The chunk's rows of a tensor, all of its columns: in `kept`, where place() put them, or in the shared memory. The
  /// caller writes here what run() is to read.
  [[nodiscard]] kernels::Rows rows_of(TensorId tensor);
  /// Carries out instructions in order. `state`: of the chunk's sequence. `targets`: for the head, the target token of
  /// each row. Requires: whatever the instructions read was written by the caller or by an earlier instruction.
  /// Errors: CheckFailure where a product is not finite.
  void run(std::span<const Instruction> instructions, SequenceState& state, std::span<const std::int32_t> targets = {});
  /// The partial sums that a part of the head adds to Program::gradient_product(): sums[rows x width]. Requires: run()
  /// has made the part's columns of the logits' gradient. exponents [width]: norm exponents of the weight's columns
  /// over the whole vocabulary. Errors: CheckFailure where a product is not finite.
  void multiply_part(std::span<const std::int16_t> exponents, kernels::PartialSums sums);
  /// Copies the chunk's keys and values, which run() has made, to `state`. An attention instruction does so by itself
  /// where they are not there yet.
  void keep_keys_values(SequenceState& state);
  /// Sum of the losses of the rows of the last cross-entropy instruction.
  [[nodiscard]] double loss() const { return loss_; }
  /// Statistics of the rows of the last cross-entropy instruction.
  [[nodiscard]] const RowSums& row_sums() const { return row_sums_; }
  /// Sets each row's maximum and sum of exponentials until the next begin(). run() then does not need all logits of a
  /// row (Program::back() with row_sums).
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
