// StageWorker: the numbers that one device holds of a step in stages, and what it computes with them.
//
// A replica of a stage has the weights of its pieces; sequences pass through it in chunks. An owner sums the gradient
// of its slices over sequences: of those that its device ran backward as a replica, from operands that were kept; of
// others, from X and dY that it is sent. The worker knows no messages and no clock: device ranks and the server call
// it.
//
// Operands and results are fp32 and row-major. With a 16-bit wire type they are rounded to it, and so are weights. A
// call in the wrong order is refused (Status::absent) and does not change what later calls return.
//
// Letters: X is what a stage reads of the residual stream, Y what it returns, dX and dY are their gradients. `width` is
// the number of columns of the residual stream, `seq` the tokens of a sequence. `end` is one past the last piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/pieces/chunk_run.hpp"
#include "cleave/pieces/stage_parts.hpp"

namespace cleave::pieces {

/// See the file comment. Not thread-safe; a call uses the threads of its Parallel. Every call that returns a Status may
/// return each of them, unless it says otherwise.
class StageWorker {
 public:
  enum class [[nodiscard]] Status{
      ok,
      absent,     ///< the weights, the sequence, or a chunk that must come before this one are not there
      malformed,  ///< an argument is out of range, or a span has the wrong size
      diverged,   ///< a value is not finite, or a gradient is too large
  };
  /// `table`: of the step's graph, with the real batch. Requires: `table` and `parallel` outlive it.
  StageWorker(PieceTable& table, kernels::Parallel& parallel);
  ~StageWorker();
  StageWorker(const StageWorker&) = delete;
  StageWorker& operator=(const StageWorker&) = delete;

  /// Forgets all weights, sequences and sums, and sum_late().
  void clear();

  /// Where a replica has the values of the forward pass from when it runs the backward pass.
  enum class Replay : std::uint8_t {
    recomputed,  ///< recomputed: recompute() opens the backward pass
    kept,  ///< kept from forward() until the sequence is summed, with weights packed once for all chunks; recompute()
           ///< serves sequences that went forward elsewhere
  };
  /// Makes the device a replica of stage number `stage`, pieces [first, end). `weights`: parameters_of_stage() in the
  /// order of their ids, each in type sent_as(); for a part of the head, then the norm exponents of the weight's
  /// columns over the whole vocabulary, 2 bytes each. Their size is bytes_of_stage(). Returns: ok or malformed.
  Status hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end, std::span<const std::byte> weights,
                    Replay replay = Replay::recomputed);
  /// The same with weights that are read in place. Requires: fp32 on the wire; no part of the head; the weights stay
  /// there unchanged until the stage is held anew or dropped, or the worker is cleared.
  Status hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end, Parameters weights, Replay replay);
  /// Ends the replica of a stage: frees its weights and its open sequences. Operands of sequences that have ended their
  /// backward pass stay until they are summed.
  void drop_stage(std::int32_t stage);
  /// The device is a replica of the stage, and the stage is a whole head.
  [[nodiscard]] bool is_head(std::int32_t stage) const;
  /// Elements of a sequence's gradients of norms at a stage (norm_elements()); 0 where the device is no replica.
  [[nodiscard]] std::int64_t norms_of(std::int32_t stage) const;
  /// Makes the device owner number `owner`: it sums the gradient of `slices` of stage number `stage`, pieces
  /// [first, end). All sums are zero. `weights`: parameters_of(steps_of_owner()) as they are sent, for a device that is
  /// no replica of the stage; empty: the replica's weights are used, and may come later. Returns: ok or malformed.
  Status hold_slices(std::int32_t owner, std::int32_t stage, std::int64_t first, std::int64_t end,
                     std::span<const UnitRange> slices, std::span<const std::byte> weights);
  /// The owner is there, and its slices are of the head or of a part of it.
  [[nodiscard]] bool owns_of_head(std::int32_t owner) const;
  /// Ends an owner: frees its sums, weights and operands.
  void drop_slices(std::int32_t owner);

  /// Rows [row, row + rows) of a sequence of the batch at a stage. Requires: `row` is a multiple of
  /// kernels::kTokenBlock, and so is `rows` unless the sequence ends with the chunk.
  struct Chunk {
    std::int32_t stage = 0;
    std::int64_t sequence = 0, row = 0, rows = 0;
  };
  /// Forward pass of a chunk: Y from X. x, y: [rows x width]; y may be empty where nobody wants it. Chunks come in
  /// order from row 0, which opens the sequence; a stage without attention that keeps no values may begin with any
  /// chunk. `goes_back`: with Replay::kept, keep this sequence's values, since its backward pass will run here.
  Status forward(const Chunk& chunk, std::span<const float> x, std::span<float> y, bool goes_back = true);
  /// Results of a chunk at the head.
  struct HeadResults {
    std::span<float> dx, top;     ///< [rows x width]; [rows]: each row's largest logit
    std::span<double> sum, loss;  ///< [rows]: each row's sum of exp(logit - top), and its loss
    std::span<float> norms;       ///< [norms_of()] with the sequence's last chunk, otherwise empty: gradients of norms
  };
  /// Forward and backward pass of a chunk at the whole head. x: [rows x width]; targets: [rows]. Chunks come in order.
  /// Results may all be empty where nobody wants them. `for_owner`: the owner on this device for whose sums operands
  /// are kept, kForAllOwners or kForNoOwner; read with the first chunk.
  Status head(const Chunk& chunk, std::span<const float> x, std::span<const std::int32_t> targets,
              const HeadResults& results, std::int32_t for_owner = kForAllOwners);
  /// Results of a chunk at a part of the head.
  struct PartResults {
    std::span<float> tops, sums;     ///< [rows x blocks of the part]: kernels::cross_entropy_blocks()
    std::span<float> target_logits;  ///< [rows]: the logit of the row's target; 0 where another part has it
  };
  /// Forward pass of a chunk at a part of the head. x: [rows x width]; targets: [rows]. Chunks come in any order;
  /// nothing is kept of them. Results may all be empty.
  Status part(const Chunk& chunk, std::span<const float> x, std::span<const std::int32_t> targets,
              const PartResults& results);
  /// Each row's largest logit, sum of exp(logit - top) over the whole vocabulary, and target: [rows] each.
  struct PartOperands {
    std::span<const float> top;
    std::span<const double> sum;
    std::span<const std::int32_t> targets;
  };
  /// Backward pass of a chunk at a part of the head: its partial sums of the gradient of the last norm's output,
  /// sums[rows x width] of partial_sum_type(wire); empty where nobody wants them. Chunks come from the last to the
  /// first, after recompute().
  Status part_backward(const Chunk& chunk, const PartOperands& rows, std::span<std::byte> sums);
  /// The device is a replica of the stage, and the stage is a part of the head.
  [[nodiscard]] bool is_part(std::int32_t stage) const;
  /// Opens the backward pass of a sequence with recomputation: X of all rows within the stage, and keys and values.
  /// x: [seq x width]. `for_owner`: as head(). Not for a whole head.
  Status recompute(std::int32_t stage, std::int64_t sequence, std::span<const float> x,
                   std::int32_t for_owner = kForAllOwners);
  /// Backward pass of a chunk: dX from dY. dy, dx: [rows x width]; dx may be empty. Chunks come from the last to the
  /// first, of a sequence that was opened by recompute(), or whose values forward() has kept. norms: with the chunk of
  /// row 0, [norms_of()] or empty: the sequence's gradients of norms; otherwise empty. `for_owner`: as head(); read
  /// with the first call for a sequence whose values were kept.
  Status backward(const Chunk& chunk, std::span<const float> dy, std::span<float> dx, std::span<float> norms,
                  std::int32_t for_owner = kForAllOwners);

  /// Operands of a sequence that the owner's device did not run backward. At the head, and at a part of it, dy is
  /// empty, and top, sum, targets stand in its place; elsewhere those are empty.
  struct Operands {
    std::span<const float> x, dy, top;      ///< [seq x width], [seq x width], [seq]: each row's largest logit
    std::span<const double> sum;            ///< [seq]: each row's sum of exp(logit - top)
    std::span<const std::int32_t> targets;  ///< [seq]
  };
  /// Adds a sequence to an owner's sums, or with `take_away` subtracts it again. operands null: the device ran the
  /// sequence backward while it was this owner, and kept the operands; they are freed.
  Status add(std::int32_t owner, std::int64_t sequence, const Operands* operands, bool take_away = false);
  /// The type in which all partial sums of these slices fit (kernels::TokenSumMatrix::partial_type()).
  [[nodiscard]] DType partial_type(std::int32_t owner, std::span<const UnitRange> slices);
  /// Copies the sums of some of an owner's slices, rectangle by rectangle in the order of regions_of(), as integers
  /// that are to be added to those of other owners. type: partial_type() or i64.
  Status partial_sums(std::int32_t owner, std::span<const UnitRange> slices, DType type, std::span<std::byte> sums);
  /// The same, finished: gradients in the unit in which they are sent (kernels::TokenUnit::as_sent()), not yet rounded
  /// to the wire type.
  Status gradient(std::int32_t owner, std::span<const UnitRange> slices, std::span<float> gradient);
  /// Allows add() to put sums off, until clear(): with fp32 on the wire, sequences whose values were kept are summed
  /// together when their sums are asked for. Sums then pass through memory once, not once a sequence, and the kept
  /// values stay until then.
  void sum_late() { sums_late_ = true; }
  /// Makes all sums that were put off, and frees what was kept for them. Returns: ok or diverged.
  Status settle();
  /// Bytes that one sequence keeps from forward() on at a stage with Replay::kept; otherwise 0.
  [[nodiscard]] Bytes kept_by_sequence(std::int32_t stage) const;
  /// Makes one of an owner's sums wrong, to emulate a device that lies. `seed` selects the element.
  void falsify(std::int32_t owner, std::uint32_t seed);

  /// Memory of weights, open sequences, kept operands and sums. Values that are rounded to the wire type are counted at
  /// its size.
  [[nodiscard]] Bytes memory() const;
  /// Number of promoted rows (kernels::TokenSumMatrix) in the sums of these slices.
  [[nodiscard]] std::int64_t promoted_rows(std::int32_t owner, std::span<const UnitRange> slices);

 private:
  struct Weights;
  struct Replica;
  struct Owner;
  struct Visit;
  struct Passed;
  using Kept = std::map<std::tuple<TensorId, std::int64_t, std::int64_t>, KeptVector<float>>;  // by tensor and columns
  using OfSequence = std::pair<std::int32_t, std::int64_t>;                                    // stage or owner first

  [[nodiscard]] Replica* replica_of(std::int32_t stage);
  [[nodiscard]] bool fits(const Chunk& chunk) const;
  [[nodiscard]] bool are_words(std::span<const std::int32_t> targets) const;
  Status take_stage(std::int32_t stage, std::int64_t first, std::int64_t end, std::unique_ptr<Weights> weights,
                    Replay replay);
  [[nodiscard]] bool can_hold(std::int64_t first, std::int64_t end);
  void forget_operands(const Visit& visit, std::int64_t sequence);
  void forget(std::map<OfSequence, Visit>& visits, std::int32_t stage, std::int64_t sequence);
  Visit& open_forward(Replica& replica, const Chunk& chunk, bool keeps);
  // `of_kept`: with the values that its forward pass has left.
  void open_back(Replica& replica, Visit& visit, std::int32_t stage, std::int64_t sequence, bool of_kept,
                 std::int32_t for_owner);
  // A sequence that is through: its operands wait for owners' sums.
  void close_back(std::map<OfSequence, Visit>& visits, std::map<OfSequence, Visit>::iterator at);
  // One chunk from the highest piece to the lowest. `dy`: none at the head. `dx`: where it is put, unless nobody wants
  // it.
  void go_back(Replica& replica, Visit& visit, const Chunk& chunk, std::span<const float> dy, std::span<float> dx,
               std::span<const std::int32_t> targets);
  void keep_operands(std::span<const Region> regions, std::int64_t piece, ChunkRun& run, const Chunk& chunk,
                     Kept& kept);
  void return_norms(const Replica& replica, const Visit& visit, std::span<float> norms) const;
  void run_alone(Owner& owner, const Operands& operands, Kept& kept);
  // `operand(region, view, part)`: rows of a sequence, the columns of a part of one of the operation's views, rounded.
  template <class Operand>
  Status add_regions(Owner& owner, const Operand& operand, std::int64_t sequence, bool take_away, bool late);
  Status add_kept(Owner& owner, const Kept& kept, std::int64_t sequence, bool take_away);
  Status add_passed(std::int32_t number, Owner& owner, std::int64_t sequence, bool take_away);
  // The sums of one region that wait.
  [[nodiscard]] kernels::ProductStatus settle(Owner& owner, std::size_t region);
  [[nodiscard]] kernels::TokenUnit unit() const { return {table_.graph().wire, table_.graph().loss_bits}; }
  // Calls use(the owner's sums, the part of them, elements before it) for each region of slices; the number of all
  // elements, or none where the slices are not the owner's.
  template <class Use>
  std::optional<std::int64_t> for_parts(std::int32_t owner, std::span<const UnitRange> slices, const Use& use);

  PieceTable& table_;
  kernels::Parallel& parallel_;
  std::int64_t seq_;
  BlockPool pool_;  // of kept values and packed weights; outlives them
  ChunkMemory memory_{pool_};
  std::map<std::int32_t, std::unique_ptr<Replica>> replicas_;  // by stage
  std::map<std::int32_t, std::unique_ptr<Owner>> owners_;
  std::map<OfSequence, Visit> forward_, backward_;
  std::map<OfSequence, Visit> waiting_;  // with kept values, before their backward pass
  std::map<OfSequence, Passed> passed_;  // and until they are summed
  std::map<OfSequence, Kept> kept_;      // operands of owners' sums, of sequences that were recomputed
  bool sums_late_ = false;
};

}  // namespace cleave::pieces
