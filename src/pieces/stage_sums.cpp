// Owners: slices of a stage's gradient, summed over sequences.
#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "cleave/kernels/copy.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/pieces/stage_worker.hpp"
#include "stage_worker_state.hpp"

namespace cleave::pieces {

namespace {

using kernels::ProductStatus;

bool are_units(PieceTable& table, std::int64_t first, std::int64_t end, std::span<const UnitRange> slices) {
  std::int64_t before = first, done = 0;  // units of that piece
  for (const UnitRange& slice : slices) {
    if (slice.piece < before || slice.piece < first || slice.piece >= end) return false;
    if (slice.begin < (slice.piece == before ? done : 0) || slice.begin >= slice.end ||
        slice.end > table.piece(slice.piece).units)
      return false;
    before = slice.piece;
    done = slice.end;
  }
  return !slices.empty();
}

// The only run of columns of an operand.
Columns columns_of_operand(const model::TensorView& view, const ColumnSet& part) {
  const Columns& run = part.runs().front();
  return {view.col0 + run.begin, view.col0 + run.end};
}

}  // namespace

StageWorker::Status StageWorker::hold_slices(std::int32_t owner, std::int32_t stage, std::int64_t first,
                                             std::int64_t end, std::span<const UnitRange> slices,
                                             std::span<const std::byte> weights) {
  if (first < 0 || end <= first || end > table_.size() || !are_units(table_, first, end, slices))
    return Status::malformed;
  auto held = std::make_unique<Owner>();
  held->stage = stage;
  held->first = first;
  held->end = end;
  held->steps = steps_of_owner(table_, first, end, slices);
  if (!weights.empty()) {
    const NeededParameters needed = parameters_of(table_, held->steps);
    if (std::ssize(weights) != bytes_of(table_.graph(), needed)) return Status::malformed;
    held->weights = std::make_unique<Weights>(table_.graph(), needed, weights);
    for (const OwnerSteps::OfPiece& of : held->steps.pieces)
      held->runs.push_back(std::make_unique<ChunkRun>(table_.program(of.piece), table_.graph().wire, parallel_, memory_,
                                                      held->weights->parameters(table_.graph())));
  }
  for (const Region& region : held->steps.regions)
    held->sums.emplace_back(region.rows.count(), region.cols.count(), unit(), &pool_);
  held->late.resize(held->sums.size());
  owners_[owner] = std::move(held);
  return Status::ok;
}

bool StageWorker::owns_of_head(std::int32_t owner) const {
  const auto found = owners_.find(owner);
  return found != owners_.end() && table_.program(found->second->end - 1).has_logits();
}

void StageWorker::drop_slices(std::int32_t owner) {
  owners_.erase(owner);
  std::erase_if(kept_, [&](const auto& entry) { return entry.first.first == owner; });
  for (auto& [of, visit] : passed_) std::erase(visit.owners, owner);
  std::erase_if(passed_, [](const auto& entry) { return entry.second.owners.empty(); });
}

void StageWorker::keep_operands(std::span<const Region> regions, std::int64_t piece, ChunkRun& run, const Chunk& chunk,
                                Kept& kept) {
  const std::span<const model::Operation* const> sums = table_.program(piece).sums();
  for (const Region& region : regions) {
    if (std::ranges::find(sums, region.op) == sums.end()) continue;
    const SumInstruction sum = region.sum();
    const auto keep = [&](const model::TensorView& view, const ColumnSet& part) {
      const Columns columns = columns_of_operand(view, part);
      KeptVector<float>& rows = kept[{view.tensor, columns.begin, columns.end}];
      rows.resize(static_cast<std::size_t>(seq_ * columns.count()));
      const kernels::Rows from = run.rows_of(view.tensor).columns(columns.begin, columns.end);
      for (std::int64_t i = 0; i < chunk.rows; ++i)
        std::copy_n(from.row(i), columns.count(), rows.data() + (chunk.row + i) * columns.count());
      kernels::round_to(table_.graph().wire, {rows.data() + chunk.row * columns.count(), chunk.rows, columns.count()});
    };
    keep(region.op->in[0], sum.a);
    if (region.op->kind == model::OpKind::gemm) keep(region.op->in[1], sum.b);
  }
}

template <class Operand>
StageWorker::Status StageWorker::add_regions(Owner& owner, const Operand& operand, std::int64_t sequence,
                                             bool take_away, bool late) {
  const auto sign = take_away ? kernels::TokenSumMatrix::Sign::take_away : kernels::TokenSumMatrix::Sign::add;
  for (std::size_t r = 0; r < owner.steps.regions.size(); ++r) {
    const Region& region = owner.steps.regions[r];
    kernels::TokenSumMatrix& sums = owner.sums[r];
    const SumInstruction sum = region.sum();
    const kernels::ConstRows a = operand(region, region.op->in[0], sum.a);
    ProductStatus status = ProductStatus::ok;
    if (region.op->kind == model::OpKind::gemm) {
      const kernels::ConstRows b = operand(region, region.op->in[1], sum.b);
      const kernels::TokenProduct product{kernels::ConstMatrix(a.data, a.ld).transposed(),
                                          kernels::ConstMatrix(b.data, b.ld),
                                          seq_,
                                          {seq_, sequence * seq_, unit()}};
      if (late) {
        owner.late[r].push_back(product);
      } else {
        status = sums.add_product(parallel_, product.k, product.a, product.b, product.tokens, sign);
      }
    } else {
      status = sums.add_columns(parallel_, a, seq_, sign);
    }
    if (status != ProductStatus::ok) return Status::diverged;
  }
  return Status::ok;
}

StageWorker::Status StageWorker::add_kept(Owner& owner, const Kept& kept, std::int64_t sequence, bool take_away) {
  const auto operand = [&](const Region&, const model::TensorView& view, const ColumnSet& part) {
    const Columns columns = columns_of_operand(view, part);
    return kernels::ConstRows(kept.at({view.tensor, columns.begin, columns.end}).data(), seq_, columns.count());
  };
  return add_regions(owner, operand, sequence, take_away, false);
}

// Where they were kept from the forward pass and back. They were kept as they were made, so others than fp32 are
// rounded now.
StageWorker::Status StageWorker::add_passed(std::int32_t number, Owner& owner, std::int64_t sequence, bool take_away) {
  const auto passed = passed_.find({owner.stage, sequence});
  if (passed == passed_.end() || std::erase(passed->second.owners, number) == 0) return Status::absent;
  const DType wire = table_.graph().wire;
  KeptVector<float> rounded[2];
  std::size_t next = 0;
  const auto operand = [&](const Region& region, const model::TensorView& view, const ColumnSet& part) {
    std::int64_t piece = owner.first;
    while (std::ranges::find(table_.program(piece).sums(), region.op) == table_.program(piece).sums().end()) ++piece;
    const Columns columns = columns_of_operand(view, part);
    const KeptValues& kept = (*passed->second.kept)[static_cast<std::size_t>(piece - owner.first)];
    const kernels::ConstRows rows = kept.rows(view.tensor, 0, seq_).columns(columns.begin, columns.end);
    if (wire == DType::f32) return rows;
    KeptVector<float>& own = rounded[next++ % 2];
    own.resize(static_cast<std::size_t>(seq_ * columns.count()));
    kernels::copy_rows(rows, own.data());
    kernels::round_to(wire, {own.data(), seq_, columns.count()});
    return kernels::ConstRows(own.data(), seq_, columns.count());
  };
  const bool late = sums_late_ && !take_away && wire == DType::f32;
  if (late) owner.late_operands.push_back(passed->second.kept);
  const Status status = add_regions(owner, operand, sequence, take_away, late);
  if (passed->second.owners.empty()) passed_.erase(passed);
  return status;
}

ProductStatus StageWorker::settle(Owner& owner, std::size_t region) {
  std::vector<kernels::TokenProduct>& late = owner.late[region];
  const ProductStatus status = owner.sums[region].add_products(parallel_, late);
  late.clear();
  if (std::ranges::all_of(owner.late, &std::vector<kernels::TokenProduct>::empty)) owner.late_operands.clear();
  return status;
}

StageWorker::Status StageWorker::settle() {
  bool good = true;
  for (const auto& [number, owner] : owners_) {
    for (std::size_t r = 0; r < owner->late.size(); ++r) {
      if (!owner->late[r].empty()) good &= settle(*owner, r) == ProductStatus::ok;
    }
  }
  return good ? Status::ok : Status::diverged;
}

Bytes StageWorker::kept_by_sequence(std::int32_t stage) const {
  const auto found = replicas_.find(stage);
  if (found == replicas_.end() || !found->second->keeps) return Bytes(0);
  std::int64_t columns = 0;
  for (std::int64_t piece = found->second->first; piece < found->second->end; ++piece)
    columns += table_.program(piece).kept_columns();
  return Bytes(columns * seq_ * static_cast<std::int64_t>(sizeof(float)));
}

StageWorker::Status StageWorker::add(std::int32_t owner, std::int64_t sequence, const Operands* operands,
                                     bool take_away) {
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return Status::absent;
  Owner& of = *found->second;
  try {
    if (operands == nullptr) {
      if (passed_.contains({of.stage, sequence})) return add_passed(owner, of, sequence, take_away);
      const auto kept = kept_.find({owner, sequence});
      if (kept == kept_.end() || backward_.contains({of.stage, sequence}) || forward_.contains({of.stage, sequence}))
        return Status::absent;
      const Status status = add_kept(of, kept->second, sequence, take_away);
      kept_.erase(kept);
      return status;
    }
    const std::int64_t width = table_.piece(of.first).width;
    const bool head = table_.program(of.end - 1).has_logits();
    const auto is = [](auto span, std::int64_t size) { return std::ssize(span) == size; };
    if (sequence < 0 || !is(operands->x, seq_ * width) || !is(operands->dy, head ? 0 : seq_ * width) ||
        !is(operands->top, head ? seq_ : 0) || !is(operands->sum, head ? seq_ : 0) ||
        !is(operands->targets, head ? seq_ : 0))
      return Status::malformed;
    if (!are_words(operands->targets)) return Status::malformed;
    const Replica* const replica = replica_of(of.stage);
    if (!of.weights && (replica == nullptr || replica->first != of.first || replica->end != of.end))
      return Status::absent;
    Kept kept;
    run_alone(of, *operands, kept);
    return add_kept(of, kept, sequence, take_away);
  } catch (const CheckFailure&) { return Status::diverged; }
}

void StageWorker::run_alone(Owner& owner, const Operands& operands, Kept& kept) {
  std::vector<ChunkRun*> runs;
  for (const std::unique_ptr<ChunkRun>& run : owner.weights ? owner.runs : replica_of(owner.stage)->runs)
    runs.push_back(run.get());
  std::vector<SequenceState> states;
  std::vector<KeptVector<float>> x(1, KeptVector<float>(operands.x.begin(), operands.x.end()));
  const auto put = [](std::span<const float> all, std::int64_t row, kernels::Rows to) {
    for (std::int64_t i = 0; i < to.rows; ++i) std::copy_n(all.data() + (row + i) * to.cols, to.cols, to.row(i));
  };
  const auto take = [](kernels::ConstRows from, std::int64_t row, KeptVector<float>& all) {
    for (std::int64_t i = 0; i < from.rows; ++i)
      std::copy_n(from.row(i), from.cols, all.data() + (row + i) * from.cols);
  };
  for (std::size_t p = 0; p < owner.steps.pieces.size(); ++p) {
    const OwnerSteps::OfPiece& of = owner.steps.pieces[p];
    const Program& program = table_.program(of.piece);
    states.push_back(runs[p]->open_backward());
    const std::vector<Instruction>& steps = of.forward.empty() ? of.keys_values : of.forward;
    if (!of.forward.empty()) x.emplace_back(static_cast<std::size_t>(seq_ * table_.piece(of.piece + 1).width));
    for (std::int64_t row = 0; row < seq_ && !steps.empty(); row += kRowsAtOnce) {
      runs[p]->begin(row, std::min(kRowsAtOnce, seq_ - row));
      put(x[p], row, runs[p]->rows_of(program.x()));
      runs[p]->run(steps, states[p]);
      if (of.forward.empty()) {
        runs[p]->keep_keys_values(states[p]);
      } else {
        take(runs[p]->rows_of(program.y()), row, x[p + 1]);
      }
    }
  }
  const std::int64_t chunks = (seq_ + kRowsAtOnce - 1) / kRowsAtOnce;
  for (std::int64_t c = chunks; c-- > 0;) {
    const Chunk chunk{.stage = owner.stage,
                      .sequence = 0,
                      .row = c * kRowsAtOnce,
                      .rows = std::min(kRowsAtOnce, seq_ - c * kRowsAtOnce)};
    const auto row = static_cast<std::size_t>(chunk.row), rows = static_cast<std::size_t>(chunk.rows);
    KeptVector<float> dy;
    for (std::size_t p = owner.steps.pieces.size(); p-- > 0;) {
      const OwnerSteps::OfPiece& of = owner.steps.pieces[p];
      if (of.back.empty()) break;
      const Program& program = table_.program(of.piece);
      ChunkRun& run = *runs[p];
      run.begin(chunk.row, chunk.rows);
      put(x[p], chunk.row, run.rows_of(program.x()));
      if (program.has_logits()) {
        run.know_row_sums(operands.top.subspan(row, rows), operands.sum.subspan(row, rows));
        run.run(of.back, states[p], operands.targets.subspan(row, rows));
      } else {
        const bool top = p + 1 == owner.steps.pieces.size();
        put(top ? operands.dy : std::span<const float>(dy), top ? chunk.row : 0, run.rows_of(program.dy()));
        run.run(of.back, states[p]);
      }
      keep_operands(owner.steps.regions, of.piece, run, chunk, kept);
      if (!of.gives_dx) break;
      dy.resize(rows * static_cast<std::size_t>(table_.piece(of.piece).width));
      take(run.rows_of(program.dx()), 0, dy);
    }
  }
}

template <class Use>
std::optional<std::int64_t> StageWorker::for_parts(std::int32_t owner, std::span<const UnitRange> slices,
                                                   const Use& use) {
  Owner& of = *owners_.at(owner);
  if (!are_units(table_, of.first, of.end, slices)) return std::nullopt;
  std::int64_t before = 0;
  for (const Region& part : regions_of(table_, slices)) {
    const auto contains = [](const Columns& a, const Columns& b) { return a.begin <= b.begin && b.end <= a.end; };
    const auto region = std::ranges::find_if(of.steps.regions, [&](const Region& r) {
      return r.op == part.op && contains(r.rows, part.rows) && contains(r.cols, part.cols);
    });
    if (region == of.steps.regions.end()) return std::nullopt;
    use(of, static_cast<std::size_t>(region - of.steps.regions.begin()),
        kernels::TokenSumMatrix::Part{part.rows.begin - region->rows.begin, part.rows.count(),
                                      part.cols.begin - region->cols.begin, part.cols.count()},
        before);
    before += part.elements();
  }
  return before;
}

DType StageWorker::partial_type(std::int32_t owner, std::span<const UnitRange> slices) {
  DType type = partial_sum_type(table_.graph().wire);
  if (!owners_.contains(owner)) return type;
  (void)for_parts(owner, slices, [&](const Owner& of, std::size_t region, const auto& part, std::int64_t) {
    if (type == DType::i32) type = of.sums[region].partial_type(part);
  });
  return type;
}

std::int64_t StageWorker::promoted_rows(std::int32_t owner, std::span<const UnitRange> slices) {
  std::int64_t rows = 0;
  if (!owners_.contains(owner)) return rows;
  (void)for_parts(owner, slices, [&](const Owner& of, std::size_t region, const auto& part, std::int64_t) {
    rows += of.sums[region].promoted_rows(part);
  });
  return rows;
}

StageWorker::Status StageWorker::partial_sums(std::int32_t owner, std::span<const UnitRange> slices, DType type,
                                              std::span<std::byte> sums) {
  if (!owners_.contains(owner)) return Status::absent;
  const auto ignore = [](const Owner&, std::size_t, const auto&, std::int64_t) {};
  const std::optional<std::int64_t> elements = for_parts(owner, slices, ignore);
  if (!elements || *elements * size_of(type) != std::ssize(sums)) return Status::malformed;
  bool good = true;
  (void)for_parts(owner, slices, [&](Owner& of, std::size_t region, const auto& part, std::int64_t before) {
    kernels::TokenSumMatrix& all = of.sums[region];
    const std::vector<kernels::TokenProduct>& late = of.late[region];
    const kernels::PartialSums to{type, sums.data() + before * size_of(type), part.cols};
    if (!late.empty() && all.untouched() && part == all.whole()) {  // straight to where they are sent from
      good &= kernels::multiply_token_runs(parallel_, part.rows, part.cols, late, to, kernels::Accumulate::no) ==
              ProductStatus::ok;
      return;
    }
    if (!late.empty()) good &= settle(of, region) == ProductStatus::ok;
    all.partial_sums(parallel_, part, to);
  });
  return good ? Status::ok : Status::diverged;
}

StageWorker::Status StageWorker::gradient(std::int32_t owner, std::span<const UnitRange> slices,
                                          std::span<float> gradient) {
  if (!owners_.contains(owner)) return Status::absent;
  const auto ignore = [](const Owner&, std::size_t, const auto&, std::int64_t) {};
  if (for_parts(owner, slices, ignore) != std::ssize(gradient)) return Status::malformed;
  bool good = true;
  (void)for_parts(owner, slices, [&](Owner& of, std::size_t region, const auto& part, std::int64_t before) {
    if (!of.late[region].empty()) good &= settle(of, region) == ProductStatus::ok;
    good &= of.sums[region].finish(parallel_, part, {gradient.data() + before, part.cols}) == ProductStatus::ok;
  });
  return good ? Status::ok : Status::diverged;
}

void StageWorker::falsify(std::int32_t owner, std::uint32_t seed) {
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return;
  std::vector<kernels::TokenSumMatrix>& all = found->second->sums;
  kernels::TokenSumMatrix& sums = all[seed % all.size()];
  const std::int64_t far_off = std::int64_t{1} << (unit().wire == DType::f32 ? 40U : 20U);
  const std::int64_t place = seed / 7 % (sums.rows() * sums.cols());
  sums.add(parallel_, {place / sums.cols(), 1, place % sums.cols(), 1}, {DType::i64, &far_off, 1});
}

}  // namespace cleave::pieces
