// StageNumbers: a head in parts (docs/numerics.md, "The head in parts"). The server puts together what the parts
// return.
#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

using sched::Errand;
using sched::Tasklet;

void StageNumbers::begin_head() {
  block_tops_.clear();
  block_sums_.clear();
  target_logits_.clear();
  shares_.clear();
  head_exponents_.clear();
  norm_states_.clear();
  through_norm_.reset();
  if (head_parts_ == 1) return;
  const auto rows = static_cast<std::size_t>(batch_ * seq_),
             blocks = static_cast<std::size_t>(vocabulary_blocks(table_->vocabulary()));
  block_tops_.resize(rows * blocks);
  block_sums_.resize(rows * blocks);
  target_logits_.resize(rows);
  through_norm_ = std::make_unique<pieces::ChunkRun>(
      table_->program(table_->head()), wire_, work_.parallel(), memory_, [this](TensorId id) {
        const model::TensorSpec& spec = work_.graph().tensor(id);
        return kernels::ConstRows(work_.tensors().parameter(id).value.data(), spec.rows, spec.cols);
      });
}

std::int64_t StageNumbers::in_table(std::int64_t piece) const {
  const std::int64_t head = table_->head();
  return piece < head ? piece : table_->part_of_head(head_parts_, piece - head);
}

std::int64_t StageNumbers::in_plan(std::int64_t piece) const {
  const std::int64_t head = table_->head();
  return piece < head ? piece : head + piece - table_->part_of_head(head_parts_, 0);
}

std::vector<pieces::UnitRange> StageNumbers::ranges_of(const std::vector<plan::PieceSlice>& slices) const {
  std::vector<pieces::UnitRange> ranges;
  for (const plan::PieceSlice& slice : slices) ranges.push_back({in_table(slice.piece), slice.begin, slice.end});
  return ranges;
}

std::int64_t StageNumbers::blocks_of(std::int32_t part) { return table_->piece(at(part).first).part.blocks; }

std::int64_t StageNumbers::blocks_before(std::int32_t part) {
  return table_->piece(at(part).first).part.first / kVocabularyBlock;
}

std::int64_t StageNumbers::exponent_bytes(const Tasklet& load) const {
  return is_part(load.stage) && load.item.owner < 0 ? width_ * static_cast<std::int64_t>(sizeof(std::int16_t)) : 0;
}

const std::vector<std::int16_t>& StageNumbers::head_exponents() {
  if (!head_exponents_.empty()) return head_exponents_;
  head_exponents_.resize(static_cast<std::size_t>(width_));
  const model::Operation* const product = table_->program(table_->head()).gradient_product();
  if (product != nullptr && !work_.take_column_exponents(*product, 0, head_exponents_))
    throw CheckFailure("a weight of the head is not finite: the training has diverged");
  return head_exponents_;
}

void StageNumbers::put_row_sums(const RowRange& of, ByteWriter& to) {
  const auto first = static_cast<std::size_t>(of.sequence * seq_ + of.row), rows = static_cast<std::size_t>(of.rows);
  join_rows(of);
  to.put(std::span<const double>(sum_).subspan(first, rows));
  to.put(std::span<const float>(top_).subspan(first, rows));
  to.put(work_.inputs().targets.subspan(first, rows));
}

std::span<std::byte> StageNumbers::share_of(std::int32_t part, const RowRange& of) {
  KeptVector<std::byte>& share = shares_[{part, of.sequence}];
  if (share.empty()) share.resize(static_cast<std::size_t>(share_bytes(seq_)));
  return std::span(share).subspan(static_cast<std::size_t>(share_bytes(of.row)),
                                  static_cast<std::size_t>(share_bytes(of.rows)));
}

bool StageNumbers::place_part(const Tasklet& tasklet, std::span<const std::byte> bytes) {
  const sched::StageItem& item = tasklet.item;
  const RowRange of{item.sequence, item.row, item.rows};
  if (tasklet.errand == Errand::backward) {
    if (!may_be_sums(bytes, partial_sum_type(wire_) == DType::i64)) return false;
    std::ranges::copy(bytes, share_of(tasklet.stage, of).begin());
    return true;
  }
  const std::int64_t blocks = blocks_of(tasklet.stage), all = vocabulary_blocks(table_->vocabulary()),
                     before = blocks_before(tasklet.stage), first = of.sequence * seq_ + of.row;
  ByteReader from(bytes);
  const auto tops = from.values<float>(static_cast<std::size_t>(of.rows * blocks)),
             sums = from.values<float>(static_cast<std::size_t>(of.rows * blocks)),
             logits = from.values<float>(static_cast<std::size_t>(of.rows));
  // A sum is of exp(logit - maximum of the block): every term is at most 1, and one is 1.
  const auto may_be_sum = [](float sum) { return sum > 0.5F && sum < 2.0F * static_cast<float>(kVocabularyBlock); };
  if (!from.done() || !kernels::all_finite(tops) || !kernels::all_finite(logits) ||
      !std::ranges::all_of(sums, may_be_sum))
    return false;
  const model::HeadPart part = table_->piece(at(tasklet.stage).first).part;
  for (std::int64_t i = 0; i < of.rows; ++i) {
    const std::int64_t row = first + i, target = work_.inputs().targets[static_cast<std::size_t>(row)],
                       block = target / kVocabularyBlock - before;
    if (target >= part.first && block < blocks) {
      const float logit = logits[static_cast<std::size_t>(i)];
      if (logit > tops[static_cast<std::size_t>(i * blocks + block)]) return false;
      target_logits_[static_cast<std::size_t>(row)] = logit;
    }
    std::copy_n(tops.begin() + i * blocks, blocks, block_tops_.begin() + row * all + before);
    std::copy_n(sums.begin() + i * blocks, blocks, block_sums_.begin() + row * all + before);
  }
  return true;
}

void StageNumbers::join_rows(const RowRange& of) {
  const auto blocks = static_cast<std::size_t>(vocabulary_blocks(table_->vocabulary()));
  const auto first = static_cast<std::size_t>(of.sequence * seq_ + of.row);
  for (std::size_t row = first; row < first + static_cast<std::size_t>(of.rows); ++row) {
    sum_[row] = kernels::join_blocks(std::span<const float>(block_tops_).subspan(row * blocks, blocks),
                                     std::span<const float>(block_sums_).subspan(row * blocks, blocks), top_[row]);
    loss_[row] = kernels::loss_of(target_logits_[row], top_[row], sum_[row]);
  }
}

void StageNumbers::join_gradients(const RowRange& of) {
  const pieces::Program& program = table_->program(table_->head());
  const model::Operation& product = *program.gradient_product();
  const DType type = partial_sum_type(wire_);
  KeptVector<std::byte> total(static_cast<std::size_t>(share_bytes(of.rows)), std::byte{0});
  for (std::int32_t part = head_; part < std::ssize(stages_); ++part)
    kernels::add_partial_sums(work_.parallel(), of.rows, width_, {type, share_of(part, of).data(), width_},
                              {type, total.data(), width_});
  pieces::ChunkRun& run = *through_norm_;
  run.begin(of.row, of.rows);
  const kernels::Rows gradient = run.rows_of(product.out[0].tensor);
  const std::vector<std::int16_t> rows(static_cast<std::size_t>(of.rows),
                                       kernels::exponent_of_bound(product.row_bound));
  if (kernels::finish_partial_sums(work_.parallel(), of.rows, width_, {type, total.data(), width_}, rows,
                                   head_exponents(), {gradient.data, gradient.ld}) != kernels::ProductStatus::ok)
    throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", product.name));
  kernels::round_to(wire_, gradient);
  const kernels::Rows x = run.rows_of(program.x());
  KeptVector<std::byte> as_sent(static_cast<std::size_t>(of.rows * row_bytes_));
  ByteWriter to(as_sent);
  put_x(head_, of, to);
  kernels::from_wire(boundary_type(), as_sent.data(), x);
  auto [state, is_new] = norm_states_.try_emplace(of.sequence);
  if (is_new) state->second = run.open_forward();
  run.run(program.back_from_product(), state->second);
  if (program.dx().valid() && head_ > 0) {
    kernels::to_wire(boundary_type(), run.rows_of(program.dx()), as_sent.data());
    take_dx(head_, of, as_sent);
  }
  if (of.row > 0) return;
  const auto norms = static_cast<std::size_t>(table_->piece(table_->head()).norm_elements);
  KeptVector<float>& returned = at(head_).norms_of[static_cast<std::size_t>(of.sequence)];
  returned.assign(norms, 0.0F);
  if (state->second.norm_sums.size() == norms) kernels::finish_token_sums(state->second.norm_sums, returned);
  norm_states_.erase(state);
  if (keeps_partial_sums_) return;
  for (std::int32_t part = head_; part < std::ssize(stages_); ++part) shares_.erase({part, of.sequence});
}

}  // namespace cleave::server
