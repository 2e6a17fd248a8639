// StageNumbers: stored answers as the bytes in which they came, and the same answers recomputed by a worker of the
// server.
#include <algorithm>

#include "cleave/kernels/wire.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

namespace {

using pieces::Region;
using pieces::StageWorker;
using pieces::UnitRange;

template <class T>
void append(std::vector<std::byte>& bytes, std::span<T> values) {
  const auto raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace

void StageNumbers::put_values(std::span<const float> values, std::vector<std::byte>& to) const {
  if (values.empty()) return;
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(element_));
  kernels::to_wire(wire_, {values.data(), 1, std::ssize(values)}, bytes.data());
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void StageNumbers::put_rows(std::span<const float> rows, std::vector<std::byte>& to) const {
  const kernels::ConstRows from{rows.data(), std::ssize(rows) / width_, width_};
  const std::size_t before = to.size();
  to.resize(before + static_cast<std::size_t>(from.rows * row_bytes_));
  kernels::to_wire(boundary_type(), from, to.data() + before);
}

std::vector<float> StageNumbers::x_values(std::int32_t stage, const RowRange& of) {
  return values_of(of, [&](ByteWriter& to) { put_x(stage, of, to); });
}

std::vector<float> StageNumbers::dy_values(std::int32_t stage, const RowRange& of) {
  return values_of(of, [&](ByteWriter& to) { put_dy(stage, of, to); });
}

std::vector<float> StageNumbers::values_of(const RowRange& of, const std::function<void(ByteWriter&)>& put) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(of.rows * row_bytes_));
  ByteWriter to(bytes);
  put(to);
  std::vector<float> values(static_cast<std::size_t>(of.rows * width_));
  kernels::from_wire(boundary_type(), bytes.data(), {values.data(), of.rows, width_});
  return values;
}

void StageNumbers::put_dx(std::int32_t stage, const RowRange& of, std::vector<std::byte>& to) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(of.rows * row_bytes_));
  if (stage > 0) {
    ByteWriter writer(bytes);
    put_dy(stage - 1, of, writer);
  } else {
    const auto& operations = work_.graph().operations;
    const auto reader = std::ranges::find(operations, model::OpKind::embed_backward, &model::Operation::kind);
    if (reader == operations.end()) return;
    kernels::to_wire(boundary_type(), rows_of(reader->in[1].tensor, of), bytes.data());
  }
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Maxima, sums and targets' logits, as a part of the head returned them. Where another part has the target, the logit
// in the answer is 0.
void StageNumbers::put_blocks(std::int32_t part, const RowRange& of, std::vector<std::byte>& to) {
  const auto all = static_cast<std::size_t>(vocabulary_blocks(table_->vocabulary())),
             first = static_cast<std::size_t>(of.sequence * seq_ + of.row),
             end = first + static_cast<std::size_t>(of.rows);
  const auto before = static_cast<std::size_t>(blocks_before(part)), blocks = static_cast<std::size_t>(blocks_of(part));
  for (const KeptVector<float>* values : {&block_tops_, &block_sums_}) {
    for (std::size_t row = first; row < end; ++row)
      append(to, std::span<const float>(*values).subspan(row * all + before, blocks));
  }
  const model::Piece& piece = table_->piece(at(part).first);
  for (std::size_t row = first; row < end; ++row) {
    const std::int64_t target = work_.inputs().targets[row] - piece.part.first;
    const float logit = target >= 0 && target < piece.units ? target_logits_[row] : 0.0F;
    append(to, std::span<const float>(&logit, 1));
  }
}

std::vector<std::byte> StageNumbers::stored_answer(const AnswerRows& of, bool with_rows, bool with_norms) {
  std::vector<std::byte> bytes;
  const auto first = static_cast<std::size_t>(of.sequence * seq_ + of.row), rows = static_cast<std::size_t>(of.rows);
  const RowRange range{of.sequence, of.row, of.rows};
  if (is_part(of.stage)) {
    if (with_rows && of.back) append(bytes, std::span<const std::byte>(share_of(of.stage, range)));
    if (with_rows && !of.back) put_blocks(of.stage, range, bytes);
  } else if (is_head(of.stage)) {
    append(bytes, std::span<const double>(sum_).subspan(first, rows));
    append(bytes, std::span<const double>(loss_).subspan(first, rows));
    put_dx(of.stage, range, bytes);
    append(bytes, std::span<const float>(top_).subspan(first, rows));
  } else if (with_rows && of.back) {
    put_dx(of.stage, range, bytes);
  } else if (with_rows) {
    bytes.resize(rows * static_cast<std::size_t>(row_bytes_));
    ByteWriter to(bytes);
    put_x(of.stage + 1, range, to);
  }
  if (with_norms && !is_part(of.stage))
    append(bytes, std::span<const float>(at(of.stage).norms_of[static_cast<std::size_t>(of.sequence)]));
  return bytes;
}

void StageNumbers::keep_sums(std::int32_t owner, const Region& region, kernels::ConstPartialSums came) {
  Kept& kept = kept_[owner].emplace_back(Kept{region, {}});
  kept.values.resize(static_cast<std::size_t>(region.elements()));
  for (std::size_t i = 0; i < kept.values.size(); ++i) {
    kept.values[i] = came.type == DType::i64 ? static_cast<const std::int64_t*>(came.data)[i]
                                             : static_cast<const std::int32_t*>(came.data)[i];
  }
}

std::vector<std::byte> StageNumbers::stored_sums(std::int32_t owner, const std::vector<plan::PieceSlice>& slices,
                                                 bool partial) {
  std::vector<std::byte> bytes;
  const float scale = work_.unit().scale_of_sent();
  std::vector<float> row;
  for (const Region& part : pieces::regions_of(*table_, ranges_of(slices))) {
    for (std::int64_t i = part.rows.begin; i < part.rows.end; ++i) {
      if (!partial) {
        const float* const from = whole(gradient_of(part.parameter)).row(i) + part.cols.begin;
        row.assign(from, from + part.cols.count());
        for (float& value : row) value /= scale;  // exact: a power of two
        put_values(row, bytes);
        continue;
      }
      // A slice may have come in several parts.
      const std::vector<Kept>& all = kept_[owner];
      for (std::int64_t j = part.cols.begin; j < part.cols.end; ++j) {
        const auto kept = std::ranges::find_if(all, [&](const Kept& one) {
          const Region& r = one.region;
          return r.op == part.op && r.rows.begin <= i && i < r.rows.end && r.cols.begin <= j && j < r.cols.end;
        });
        const std::int64_t value =
            kept == all.end()
                ? 0
                : kept->values[static_cast<std::size_t>((i - kept->region.rows.begin) * kept->region.cols.count() + j -
                                                        kept->region.cols.begin)];
        append(bytes, std::span<const std::int64_t>(&value, 1));
      }
    }
  }
  return bytes;
}

StageNumbers::Status StageNumbers::hold_stage(StageWorker& worker, std::int32_t stage) {
  const Stage& of = at(stage);
  const pieces::NeededParameters needed = pieces::parameters_of_stage(*table_, of.first, of.end);
  std::vector<std::byte> weights(static_cast<std::size_t>(pieces::bytes_of_stage(*table_, of.first, of.end)));
  ByteWriter to(weights);
  put_weights(needed, to);
  if (is_part(stage)) to.put(std::span<const std::int16_t>(head_exponents()));
  return worker.hold_stage(stage, of.first, of.end, weights);
}

StageNumbers::Status StageNumbers::hold_slices(StageWorker& worker, std::int32_t owner, std::int32_t stage,
                                               const std::vector<plan::PieceSlice>& slices) {
  const Stage& of = at(stage);
  const std::vector<UnitRange> ranges = ranges_of(slices);
  const pieces::NeededParameters needed =
      pieces::parameters_of(*table_, pieces::steps_of_owner(*table_, of.first, of.end, ranges));
  std::vector<std::byte> weights(static_cast<std::size_t>(pieces::bytes_of(work_.graph(), needed)));
  ByteWriter to(weights);
  put_weights(needed, to);
  return worker.hold_slices(owner, stage, of.first, of.end, ranges, weights);
}

StageNumbers::Status StageNumbers::recompute(StageWorker& worker, std::int32_t stage, std::int64_t sequence) {
  return worker.recompute(stage, sequence, x_values(stage, {sequence, 0, seq_}));
}

StageNumbers::Status StageNumbers::answer(StageWorker& worker, const AnswerRows& of, bool with_rows, bool with_norms,
                                          std::vector<std::byte>& bytes) {
  const StageWorker::Chunk chunk{.stage = of.stage, .sequence = of.sequence, .row = of.row, .rows = of.rows};
  const RowRange range{of.sequence, of.row, of.rows};
  const auto rows = static_cast<std::size_t>(of.rows), elements = rows * static_cast<std::size_t>(width_);
  std::vector<float> norms(with_norms ? static_cast<std::size_t>(at(of.stage).norms) : 0);
  Status status = Status::ok;
  if (is_part(of.stage)) {
    status = answer_of_part(worker, chunk, of.back, with_rows, bytes);
  } else if (is_head(of.stage)) {
    const auto first = static_cast<std::size_t>(of.sequence * seq_ + of.row);
    std::vector<float> dx(elements), top(rows);
    std::vector<double> sum(rows), loss(rows);
    status = worker.head(chunk, x_values(of.stage, range), work_.inputs().targets.subspan(first, rows),
                         {dx, top, sum, loss, norms});
    append(bytes, std::span<const double>(sum));
    append(bytes, std::span<const double>(loss));
    put_rows(dx, bytes);
    append(bytes, std::span<const float>(top));
  } else if (of.back) {
    std::vector<float> dx(with_rows ? elements : 0);
    status = worker.backward(chunk, dy_values(of.stage, range), dx, norms);
    put_rows(dx, bytes);
  } else {
    std::vector<float> y(elements);
    status = worker.forward(chunk, x_values(of.stage, range), y);
    if (with_rows) put_rows(y, bytes);
  }
  append(bytes, std::span<const float>(norms));
  return status;
}

StageNumbers::Status StageNumbers::answer_of_part(StageWorker& worker, const StageWorker::Chunk& chunk, bool back,
                                                  bool with_rows, std::vector<std::byte>& bytes) {
  const RowRange range{chunk.sequence, chunk.row, chunk.rows};
  const auto first = static_cast<std::size_t>(chunk.sequence * seq_ + chunk.row),
             rows = static_cast<std::size_t>(chunk.rows);
  const std::span<const std::int32_t> targets = work_.inputs().targets.subspan(first, rows);
  if (back) {
    join_rows(range);
    bytes.resize(with_rows ? static_cast<std::size_t>(share_bytes(chunk.rows)) : 0);
    return worker.part_backward(chunk,
                                {std::span<const float>(top_).subspan(first, rows),
                                 std::span<const double>(sum_).subspan(first, rows), targets},
                                bytes);
  }
  const std::size_t sums = with_rows ? rows * static_cast<std::size_t>(blocks_of(chunk.stage)) : 0;
  std::vector<float> tops(sums), of_blocks(sums), logits(with_rows ? rows : 0);
  const Status status = worker.part(chunk, x_values(chunk.stage, range), targets, {tops, of_blocks, logits});
  for (const auto* values : {&tops, &of_blocks, &logits}) append(bytes, std::span<const float>(*values));
  return status;
}

StageNumbers::Status StageNumbers::add(StageWorker& worker, std::int32_t owner, std::int32_t stage,
                                       std::int64_t sequence) {
  const auto first = static_cast<std::size_t>(sequence * seq_), rows = static_cast<std::size_t>(seq_);
  const RowRange all{sequence, 0, seq_};
  const std::vector<float> x = x_values(stage, all);
  std::vector<float> dy;
  StageWorker::Operands operands;
  operands.x = x;
  if (is_part(stage)) join_rows(all);
  if (has_logits(stage)) {
    operands.top = std::span<const float>(top_).subspan(first, rows);
    operands.sum = std::span<const double>(sum_).subspan(first, rows);
    operands.targets = work_.inputs().targets.subspan(first, rows);
  } else {
    dy = dy_values(stage, all);
    operands.dy = dy;
  }
  return worker.add(owner, sequence, &operands);
}

StageNumbers::Status StageNumbers::sums(StageWorker& worker, std::int32_t owner,
                                        const std::vector<plan::PieceSlice>& slices, bool partial,
                                        std::vector<std::byte>& bytes) {
  const std::vector<UnitRange> ranges = ranges_of(slices);
  std::int64_t elements = 0;
  for (const Region& region : pieces::regions_of(*table_, ranges)) elements += region.elements();
  if (partial) {
    bytes.resize(static_cast<std::size_t>(elements * size_of(DType::i64)));
    return worker.partial_sums(owner, ranges, DType::i64, bytes);
  }
  std::vector<float> values(static_cast<std::size_t>(elements));
  const Status status = worker.gradient(owner, ranges, values);
  put_values(values, bytes);
  return status;
}

StageNumbers::Status StageNumbers::place_own(StageWorker& worker, const sched::Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  std::vector<std::byte> bytes;
  if (const Status status = sums(worker, item.owner, *item.slices, item.partial, bytes); status != Status::ok)
    return status;
  promoted_rows_ += worker.promoted_rows(item.owner, ranges_of(*item.slices));
  if (!place_sums(tasklet, bytes)) return Status::diverged;
  if (is_read_later(tasklet)) made_here_.push_back(std::move(bytes));
  return Status::ok;
}

std::vector<plan::PieceSlice> StageNumbers::slices_of(std::int32_t owner) const {
  std::vector<plan::PieceSlice> slices;
  for (const UnitRange& range : slices_.at(owner)) slices.push_back({in_plan(range.piece), range.begin, range.end});
  return slices;
}

}  // namespace cleave::server
