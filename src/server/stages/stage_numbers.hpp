// StageNumbers: the server's part in the numbers of a step in stages: boundaries between stages, weights that go to
// devices, results that come back, and the gradients that are made of them.
//
// Every boundary is kept until the step ends, so whatever is lost can be recomputed. Sums of gradients stay integers
// until a kernel reads the gradient: then they are complete. The kernels of the embeddings' gradients wait until then
// too, since a tied embedding's gradient is added to the sums of the head's owners.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cleave/base/byte_cursor.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/pieces/stage_parts.hpp"
#include "cleave/pieces/stage_worker.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/fleet.hpp"
#include "gather.hpp"
#include "injected_fault.hpp"
#include "server_kernels.hpp"
#include "stages/tiled_stages.hpp"
#include "workspace.hpp"

namespace cleave::server {

[[nodiscard]] inline kernels::TokenSumMatrix::Part part_of(const pieces::Region& region) {
  return {region.rows.begin, region.rows.count(), region.cols.begin, region.cols.count()};
}

class StageNumbers {
 public:
  /// `work` and `kernels` must outlive this object.
  StageNumbers(Workspace& work, ServerKernels& kernels) : work_(work), kernels_(kernels) {}
  /// Partial sums are kept as they came, beside their total, so that they can be compared later.
  void keep_partial_sums() { keeps_partial_sums_ = true; }
  /// Devices may put off summing a sequence until its sums are asked for.
  void sum_late() { sums_late_ = true; }
  [[nodiscard]] bool keeps(bool partial) const { return !partial || keeps_partial_sums_; }

  /// The workspace's step is run in the stages of `plan`. Requires: a graph with one row group and one chunk of the
  /// loss.
  void begin(const plan::StagePlan& plan);
  /// The next step is in tiles, unless begin() says otherwise.
  void end() { active_ = false; }
  [[nodiscard]] bool active() const { return active_; }
  /// Some step was run in stages.
  [[nodiscard]] bool was_begun() const { return table_ != nullptr; }
  /// As in sched::Fleet, for a stage that runs in tiles: its input boundary becomes a tensor of the graph; the tensor
  /// that it has made becomes a boundary.
  void begin_tiles(std::int32_t stage, bool back);
  void end_tiles(std::int32_t stage, bool back);
  [[nodiscard]] bool runs_in_tiles(OpId op) const { return tiled_.runs(op); }
  [[nodiscard]] bool has_tiles() const { return !tiled_.operations().empty(); }

  /// The task message of a tasklet with an errand, for `reader`. `key`: of a witness's digest, else null. Requires:
  /// messages to a device are sent in the order of these calls. Errors: InputError where a message would be too long.
  [[nodiscard]] comm::Frame message(const sched::Tasklet& tasklet, const FaultOrder& fault, const Reader& reader,
                                    const SipKey* key);
  /// Tells a device that a step begins.
  [[nodiscard]] comm::Frame begin_message(DeviceId device) const;
  /// The message by which an owner takes a sequence out of its sums again. `sum`: the tasklet that added it.
  [[nodiscard]] comm::Frame take_away(const sched::Tasklet& sum);
  /// A device has released this load: the role that came with it has ended.
  void released(TaskletId load) { roles_.erase(load); }
  /// An owner's 64-bit sums of a region, row by row, in a message that was kept.
  struct PartialSum {
    pieces::Region region;
    const std::int64_t* sums = nullptr;
  };
  /// Whether a result is read only later, so that its frame must be kept after place().
  [[nodiscard]] bool is_read_later(const sched::Tasklet& tasklet) const {
    return wire_ == DType::f32 && !keeps_partial_sums_ && tasklet.errand == sched::Errand::send_sums &&
           tasklet.item.partial;
  }
  void keep(comm::Frame frame) { frames_.push_back(std::move(frame)); }
  /// Stores sums that a worker of the server has made, as place() stores those of a device.
  pieces::StageWorker::Status place_own(pieces::StageWorker& worker, const sched::Tasklet& tasklet);
  /// Stores a result. False: it is not what was asked for, or has values that are not finite or not possible.
  /// Partial sums in 64 bits are possible within twice the scale of kernels/gemm.hpp. Those of training that diverges
  /// may be any: the caller has compared them then.
  enum class Sums64 : std::uint8_t { within_scale, any };
  [[nodiscard]] bool place(const sched::Tasklet& tasklet, const comm::ResultView& result,
                           Sums64 sums = Sums64::within_scale);

  // For StageCheck, which makes answers again with a worker of the server.

  [[nodiscard]] pieces::PieceTable& table() { return *table_; }
  /// The rows that an answer is for: of a sequence at a stage, forward or backward.
  struct AnswerRows {
    std::int32_t stage = 0;
    bool back = false;
    std::int64_t sequence = 0, row = 0, rows = 0;
  };
  /// The stored answer of a device, and stored sums of an owner's slices, as the bytes in which they came.
  [[nodiscard]] std::vector<std::byte> stored_answer(const AnswerRows& of, bool with_rows, bool with_norms);
  [[nodiscard]] std::vector<std::byte> stored_sums(std::int32_t owner, const std::vector<plan::PieceSlice>& slices,
                                                   bool partial);
  /// Whether a visit's answers still stand as they came: shares of dX are given up once they are added up.
  [[nodiscard]] bool has_answers(std::int32_t stage, bool back, std::int64_t sequence) const {
    return !back || !is_part(stage) || shares_.contains({stage, sequence});
  }
  using Status = pieces::StageWorker::Status;
  /// Gives a worker the weights of a stage, or of an owner's slices.
  Status hold_stage(pieces::StageWorker& worker, std::int32_t stage);
  Status hold_slices(pieces::StageWorker& worker, std::int32_t owner, std::int32_t stage,
                     const std::vector<plan::PieceSlice>& slices);
  /// Begins a sequence's backward pass in a worker.
  Status recompute(pieces::StageWorker& worker, std::int32_t stage, std::int64_t sequence);
  /// Makes an answer in the bytes in which a device would send it.
  Status answer(pieces::StageWorker& worker, const AnswerRows& of, bool with_rows, bool with_norms,
                std::vector<std::byte>& bytes);
  /// Adds a sequence to an owner's sums in a worker.
  Status add(pieces::StageWorker& worker, std::int32_t owner, std::int32_t stage, std::int64_t sequence);
  /// Makes an owner's sums in the bytes in which a device would send them; partial sums always with 64 bits.
  Status sums(pieces::StageWorker& worker, std::int32_t owner, const std::vector<plan::PieceSlice>& slices,
              bool partial, std::vector<std::byte>& bytes);
  [[nodiscard]] std::vector<plan::PieceSlice> slices_of(std::int32_t owner) const;
  /// Whether a tied embedding has added to what owners sent of these slices, so that stored_sums() are not theirs
  /// alone.
  [[nodiscard]] bool is_added_to(const std::vector<plan::PieceSlice>& slices) const;
  /// What an owner should have sent, if it is not partial.
  struct OwnSums {
    std::int32_t owner = 0;
    std::vector<plan::PieceSlice> slices;
    std::vector<std::byte> bytes;
  };
  /// Of these owners, those whose sums were others: with what embeddings have added they do not make the gradient.
  [[nodiscard]] std::set<std::int32_t> wrong_before_added(std::span<const OwnSums> all);

  /// Runs a server kernel. Gradients that it reads are finished first; the gradient of an embedding is run only when
  /// its parameter's gradient is finished.
  void run(const model::Operation& kernel);
  /// Rows of owners' sums that needed 64 bits though the wire has 16 (kernels::TokenSumMatrix).
  [[nodiscard]] std::int64_t promoted_rows() const { return promoted_rows_; }
  /// Sum of the losses of all rows.
  [[nodiscard]] double loss() const;

 private:
  struct Stage {
    std::int64_t first = 0, end = 0, norms = 0;
    KeptVector<std::byte> dy;                 // gradient of what it returns, [tokens][width] in the wire type
    std::vector<KeptVector<float>> norms_of;  // of each sequence: its share of the norms' gradients, or nothing yet
  };
  // A device owns slices of a stage of which it is a replica.
  struct Role {
    DeviceId device;
    std::int32_t stage = 0, owner = 0;
  };
  using OwnVisit = std::tuple<std::int32_t, std::int64_t, std::int64_t>;  // owner, sequence, device

  [[nodiscard]] comm::Header header_of(const sched::Tasklet& tasklet);
  // Sets places_: where a device on this host reads the weights of a load; empty if it is sent all of them.
  void find_places(const sched::Tasklet& load, const Reader& reader);
  [[nodiscard]] pieces::NeededParameters sent_of(const sched::Tasklet& load);
  [[nodiscard]] std::int64_t operand_bytes(const sched::Tasklet& tasklet);
  [[nodiscard]] std::int64_t result_bytes(const sched::Tasklet& tasklet);
  void fill(const sched::Tasklet& tasklet, std::span<std::byte> payload);
  [[nodiscard]] pieces::NeededParameters needed(const sched::Tasklet& load);
  void put_weights(const pieces::NeededParameters& parameters, ByteWriter& to);
  // Bytes of the head's column exponents in a load: 0 unless it is of a part of the head.
  [[nodiscard]] std::int64_t exponent_bytes(const sched::Tasklet& load) const;
  void begin_head();
  void put_operands(std::int32_t stage, std::int64_t sequence, ByteWriter& to);
  [[nodiscard]] std::int64_t operands_of_sum(std::int32_t stage) const;
  // Rows of a boundary. put_*() write them to a payload, take_*() store them: X is what a stage reads, dY the gradient
  // of what it returns, dX that of X.
  struct RowRange {
    std::int64_t sequence = 0, row = 0, rows = 0;
  };
  [[nodiscard]] std::span<std::byte> rows_between(KeptVector<std::byte>& boundary, const RowRange& of) const;
  [[nodiscard]] kernels::Rows rows_of(TensorId tensor, const RowRange& of);
  void put_row_sums(const RowRange& of, ByteWriter& to);
  void put_x(std::int32_t stage, const RowRange& of, ByteWriter& to);
  void put_dy(std::int32_t stage, const RowRange& of, ByteWriter& to);
  void take_x(std::int32_t stage, const RowRange& of, std::span<const std::byte> rows);
  void take_dx(std::int32_t stage, const RowRange& of, std::span<const std::byte> rows);
  [[nodiscard]] kernels::Rows whole(TensorId tensor);
  [[nodiscard]] TensorId gradient_of(TensorId parameter) const;
  [[nodiscard]] bool place_sums(const sched::Tasklet& tasklet, std::span<const std::byte> bytes);
  [[nodiscard]] static bool may_be_sums(std::span<const std::byte> sums, bool in_64_bits);
  // As many as may have been promoted.
  [[nodiscard]] std::int32_t rows_of_sums(const sched::StageItem& item) const;
  void finish_sums(std::span<const PartialSum> parts);
  void finish_unlike_sums(std::span<const PartialSum> parts);
  void complete(TensorId parameter);
  void keep_sums(std::int32_t owner, const pieces::Region& region, kernels::ConstPartialSums came);
  [[nodiscard]] std::vector<float> x_values(std::int32_t stage, const RowRange& of);
  [[nodiscard]] std::vector<float> dy_values(std::int32_t stage, const RowRange& of);
  // The values of rows that `put` writes in the wire type.
  [[nodiscard]] std::vector<float> values_of(const RowRange& of, const std::function<void(ByteWriter&)>& put) const;
  // Appends dX of a stage, as it came; nothing where no kernel reads it.
  void put_dx(std::int32_t stage, const RowRange& of, std::vector<std::byte>& to);
  void put_blocks(std::int32_t part, const RowRange& of, std::vector<std::byte>& to);
  Status answer_of_part(pieces::StageWorker& worker, const pieces::StageWorker::Chunk& chunk, bool back, bool with_rows,
                        std::vector<std::byte>& bytes);
  // Values in the wire type; rows of the residual stream or its gradient as they travel.
  void put_values(std::span<const float> values, std::vector<std::byte>& to) const;
  void put_rows(std::span<const float> rows, std::vector<std::byte>& to) const;

  [[nodiscard]] Stage& at(std::int32_t stage) { return stages_[static_cast<std::size_t>(stage)]; }
  // A stage is the whole head, or a part of it. All parts read the X of the first one.
  [[nodiscard]] bool is_head(std::int32_t stage) const { return head_parts_ == 1 && stage == head_; }
  [[nodiscard]] bool is_part(std::int32_t stage) const { return head_parts_ > 1 && stage >= head_; }
  [[nodiscard]] bool has_logits(std::int32_t stage) const { return stage >= head_; }
  [[nodiscard]] KeptVector<std::byte>& x_of(std::int32_t stage) {
    return x_[static_cast<std::size_t>(std::min(stage, head_))];
  }
  // A plan numbers the parts of its head right after the last layer. The table has the parts of every way to cut the
  // head, so their numbers differ.
  [[nodiscard]] std::int64_t in_table(std::int64_t piece) const;
  [[nodiscard]] std::int64_t in_plan(std::int64_t piece) const;
  [[nodiscard]] std::vector<pieces::UnitRange> ranges_of(const std::vector<plan::PieceSlice>& slices) const;
  // Vocabulary blocks of a part of the head, and of all parts before it.
  [[nodiscard]] std::int64_t blocks_of(std::int32_t part);
  [[nodiscard]] std::int64_t blocks_before(std::int32_t part);
  [[nodiscard]] bool place_part(const sched::Tasklet& tasklet, std::span<const std::byte> bytes);
  // Joins the maxima and sums of all vocabulary blocks to those of whole rows, and computes the losses.
  void join_rows(const RowRange& of);
  // Adds the shares of dX that the parts have returned for some rows, and takes the sum back through the last norm.
  void join_gradients(const RowRange& of);
  // The type of rows between stages.
  [[nodiscard]] DType boundary_type() const { return work_.graph().boundary; }
  [[nodiscard]] std::int64_t share_bytes(std::int64_t rows) const {
    return rows * width_ * size_of(partial_sum_type(wire_));
  }
  [[nodiscard]] std::span<std::byte> share_of(std::int32_t part, const RowRange& of);
  [[nodiscard]] const std::vector<std::int16_t>& head_exponents();

  Workspace& work_;
  ServerKernels& kernels_;
  bool active_ = false, keeps_partial_sums_ = false, sums_late_ = false;
  std::map<const model::StepGraph*, std::unique_ptr<pieces::PieceTable>> tables_;
  pieces::PieceTable* table_ = nullptr;
  std::int64_t batch_ = 0, seq_ = 0, width_ = 0;
  std::vector<Stage> stages_;
  TiledStages tiled_;
  DType wire_ = DType::f32;
  std::int64_t element_ = 4;              // bytes, on the wire
  std::int64_t row_bytes_ = 0;            // of a row of a boundary, as it travels
  std::vector<KeptVector<std::byte>> x_;  // what stages from the second on read, as it travels
  KeptVector<float> top_;
  KeptVector<double> sum_, loss_;
  // For a head in parts: maxima and sums, [tokens][vocabulary blocks]; the logit of each row's target; by part and
  // sequence, shares of dX until they are joined; and the backward pass through the last norm.
  std::int32_t head_ = 0;
  std::int64_t head_parts_ = 1;
  KeptVector<float> block_tops_, block_sums_, target_logits_;
  std::map<std::pair<std::int32_t, std::int64_t>, KeptVector<std::byte>> shares_;
  std::vector<std::int16_t> head_exponents_;  // of the columns of the head's weight
  BlockPool pool_;
  pieces::ChunkMemory memory_{pool_};
  std::unique_ptr<pieces::ChunkRun> through_norm_;
  std::map<std::int64_t, pieces::SequenceState> norm_states_;
  std::map<std::int32_t, std::vector<pieces::UnitRange>> slices_;  // by owner
  std::map<TaskletId, Role> roles_;                                // by the load that gave the role
  std::set<OwnVisit> own_;                  // sequences whose operands a device keeps for an owner
  std::vector<comm::OperandPlace> places_;  // of the load whose message is being made
  // Partial sums of a gradient product, added up: `total` is of the whole tensor, `regions` are those that have come.
  struct Sums {
    kernels::TokenSumMatrix total;
    std::vector<pieces::Region> regions;
  };
  std::map<OpId, Sums> sums_;
  // Partial sums of a region, as they came.
  struct Kept {
    pieces::Region region;
    std::vector<std::int64_t> values;
  };
  std::map<std::int32_t, std::vector<Kept>> kept_;   // by owner
  std::map<OpId, std::vector<PartialSum>> partial_;  // with fp32 on the wire: partial sums, read where they came
  std::int64_t open_sums_ = 0;                       // entries of partial_ that are not finished
  std::vector<comm::Frame> frames_;                  // messages that partial_ points into
  std::vector<std::vector<std::byte>> made_here_;    // sums of the server that partial_ points into
  std::set<TensorId> norms_folded_;
  std::int64_t promoted_rows_ = 0;
  std::vector<model::Operation> waiting_;                    // kernels of embeddings' gradients, one for each table
  std::map<TensorId, std::vector<model::Operation>> added_;  // those that were run, by parameter
};

}  // namespace cleave::server
