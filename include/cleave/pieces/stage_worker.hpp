// StageWorker: the numbers that one device holds of a step in stages, and what it computes with them.
//
// A replica of a stage has the weights of its pieces; sequences pass through it in chunks. An owner sums gradients of
// slices over sequences, those that its device ran backward as a replica from what it kept, others from X and dY that
// it is sent. The worker knows no messages and no clock: device ranks call it, and so may the server.
//
// Operands and results are fp32, row-major, one after another; where the graph's wire type has 16 bits they are rounded
// to it, and so are weights. What is asked for in the wrong order is refused (Status::absent) and changes nothing that
// could be returned later.
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

class StageWorker {
 public:
  enum class [[nodiscard]] Status{
      ok,
      absent,     ///< weights, the sequence, or chunks before this one are not there
      malformed,  ///< operands or results of another size than they are to have
      diverged,   ///< a value is not finite, or a gradient too large
  };

  /// `table`, `parallel` must outlive it. `table` is of a graph with the batch's real number of rows.
  StageWorker(PieceTable& table, kernels::Parallel& parallel);
  ~StageWorker();
  StageWorker(const StageWorker&) = delete;
  StageWorker& operator=(const StageWorker&) = delete;

  /// Forgets everything.
  void clear();

  /// How a replica takes sequences back.
  enum class Replay : std::uint8_t {
    remade,  ///< remake() makes again what the way back needs
    kept,    ///< what forward() has made is kept until the sequence is summed, and weights are packed once for all
             ///< chunks; remake() as above for others
  };
  /// Weights of pieces [first, end) as they are sent: parameters_of_stage() in order of their ids (sent_as()); of a
  /// part of the head then the exponents of the weight's columns over the whole vocabulary, 2 bytes each
  /// (bytes_of_stage()).
  Status hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end, std::span<const std::byte> weights,
                    Replay replay = Replay::remade);
  /// The same, where weights are read where they lie, in fp32. Requires: fp32 on the wire. They must stay there,
  /// unchanged, until the stage is held anew or the worker is cleared.
  Status hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end, Parameters weights, Replay replay);
  /// Gives up its weights, and what there is of sequences at the stage, but for operands of owners' sums.
  void drop_stage(std::int32_t stage);
  [[nodiscard]] bool is_head(std::int32_t stage) const;
  /// Elements of a sequence's gradients of norms at a stage; 0 where it is not held.
  [[nodiscard]] std::int64_t norms_of(std::int32_t stage) const;
  /// Slices of a stage of pieces [first, end). With `weights` (parameters_of() their steps, needed lines one after
  /// another) it is no replica of the stage; without, it uses those of the replica, which may come later.
  Status hold_slices(std::int32_t owner, std::int32_t stage, std::int64_t first, std::int64_t end,
                     std::span<const UnitRange> slices, std::span<const std::byte> weights);
  [[nodiscard]] bool owns_of_head(std::int32_t owner) const;
  void drop_slices(std::int32_t owner);

  /// Rows of a sequence at a stage. Requires: row is a multiple of kernels::kTokenBlock, and so is rows unless the
  /// sequence ends with them.
  struct Chunk {
    std::int32_t stage = 0;
    std::int64_t sequence = 0, row = 0, rows = 0;
  };
  /// Y of X. The first chunk of a sequence opens it. Chunks come in order; of a stage without attention that keeps no
  /// values, from any chunk on. `goes_back`: it will go back here, if values are kept.
  Status forward(const Chunk& chunk, std::span<const float> x, std::span<float> y, bool goes_back = true);
  /// What comes of a chunk at the head: dX, each row's maximum, sum of exponentials and loss, and with the last chunk
  /// (otherwise empty) the sequence's gradients of norms.
  struct HeadResults {
    std::span<float> dx, top;
    std::span<double> sum, loss;
    std::span<float> norms;
  };
  /// `for_owner`: whose sums operands are kept for.
  Status head(const Chunk& chunk, std::span<const float> x, std::span<const std::int32_t> targets,
              const HeadResults& results, std::int32_t for_owner = kForAllOwners);
  /// What comes of a chunk at a part of the head: of each row and vocabulary block of the part the maximum and the sum
  /// of exponentials (kernels::cross_entropy_blocks), and the logit of the row's target, 0 where the part has it not.
  struct PartResults {
    std::span<float> tops, sums, target_logits;
  };
  Status part(const Chunk& chunk, std::span<const float> x, std::span<const std::int32_t> targets,
              const PartResults& results);
  /// What of rows all parts together know.
  struct PartOperands {
    std::span<const float> top;
    std::span<const double> sum;
    std::span<const std::int32_t> targets;
  };
  /// The part's share of dX of a sequence that was remade, from the last chunk to the first: scaled integers
  /// [rows][width] of partial_sum_type(wire), or nothing where nobody wants them.
  Status part_backward(const Chunk& chunk, const PartOperands& rows, std::span<std::byte> sums);
  [[nodiscard]] bool is_part(std::int32_t stage) const;
  /// Opens a sequence's way back: X of all its rows.
  Status remake(std::int32_t stage, std::int64_t sequence, std::span<const float> x,
                std::int32_t for_owner = kForAllOwners);
  /// dX of dY, from the last chunk to the first, of a sequence that was remade, or kept since it went forward here;
  /// with the first (otherwise empty) the sequence's gradients of norms. `dx` may be empty where nobody wants it.
  /// `for_owner`: of the last chunk of a sequence that was kept, as of head().
  Status backward(const Chunk& chunk, std::span<const float> dy, std::span<float> dx, std::span<float> norms,
                  std::int32_t for_owner = kForAllOwners);

  /// What an owner is sent of a sequence that its device did not run backward: X, and dY; at the head, instead of dY,
  /// each row's maximum and sum, and the targets.
  struct Operands {
    std::span<const float> x, dy, top;
    std::span<const double> sum;
    std::span<const std::int32_t> targets;
  };
  /// Adds a sequence to an owner's sums, or takes it away again. Without operands: one that this device ran backward
  /// when it had these slices already.
  Status add(std::int32_t owner, std::int64_t sequence, const Operands* operands, bool take_away = false);
  /// Sums of some of an owner's slices, region by region: as they are, to be added to those of others, or finished, as
  /// they are sent (kernels::TokenUnit) but not yet rounded to the wire type. Partial sums have the type that all of
  /// these slices fit into (kernels::TokenSumMatrix::partial_type).
  [[nodiscard]] DType partial_type(std::int32_t owner, std::span<const UnitRange> slices);
  Status partial_sums(std::int32_t owner, std::span<const UnitRange> slices, DType type, std::span<std::byte> sums);
  Status gradient(std::int32_t owner, std::span<const UnitRange> slices, std::span<float> gradient);
  /// From now on until clear(): sums over sequences that were kept may wait until somebody asks for them, and what was
  /// kept stays until then. Sums then pass through memory once, not once a sequence. fp32 on the wire; others do not
  /// wait.
  void sum_late() { sums_late_ = true; }
  /// Makes the sums that wait, and gives up what was kept for them.
  Status settle();
  /// What a sequence will keep that begins its way forward at a stage.
  [[nodiscard]] Bytes kept_by_sequence(std::int32_t stage) const;
  /// Makes one of an owner's sums wrong, as an emulated liar does; `seed` picks it.
  void falsify(std::int32_t owner, std::uint32_t seed);

  /// What it holds: weights, open sequences, operands that are kept for sums, sums; in the wire type where that is what
  /// they are rounded to.
  [[nodiscard]] Bytes memory() const;
  /// Rows of an owner's sums that take more than their wire type's 4 bytes an element.
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
  // `of_kept`: with the values that its way forward has left.
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
  std::map<OfSequence, Visit> waiting_;  // with kept values, before their way back
  std::map<OfSequence, Passed> passed_;  // and until they are summed
  std::map<OfSequence, Kept> kept_;      // operands of owners' sums, of sequences that were remade
  bool sums_late_ = false;
};

}  // namespace cleave::pieces
