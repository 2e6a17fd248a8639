// Replicas: weights in, sequences through. Owners are in stage_sums.cpp.
#include "cleave/pieces/stage_worker.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "stage_worker_state.hpp"

namespace cleave::pieces {

namespace {

void put_rows(std::span<const float> from, kernels::Rows to) {
  for (std::int64_t i = 0; i < to.rows; ++i) std::copy_n(from.data() + i * to.cols, to.cols, to.row(i));
}

// Where rows go that somebody wants: the place of none in a message has an address, too.
float* where(std::span<float> rows) { return rows.empty() ? nullptr : rows.data(); }

// Memory of a piece's operations is written by them, but what comes in is only read.
float* only_read(const float* rows) { return const_cast<float*>(rows); }

void take_rows(kernels::ConstRows from, float* to) {
  for (std::int64_t i = 0; i < from.rows; ++i) std::copy_n(from.row(i), from.cols, to + i * from.cols);
}

// Rows [row, row + rows) of a whole sequence.
std::span<const float> rows_of_sequence(std::span<const float> all, std::int64_t row, std::int64_t rows,
                                        std::int64_t cols) {
  return all.subspan(static_cast<std::size_t>(row * cols), static_cast<std::size_t>(rows * cols));
}

}  // namespace

StageWorker::StageWorker(PieceTable& table, kernels::Parallel& parallel)
    : table_(table), parallel_(parallel), seq_(table.graph().seq) {}
StageWorker::~StageWorker() = default;

void StageWorker::clear() {
  replicas_.clear();
  owners_.clear();
  forward_.clear();
  backward_.clear();
  waiting_.clear();
  passed_.clear();
  kept_.clear();
  sums_late_ = false;
}

StageWorker::Weights::Weights(const model::StepGraph& graph, const NeededParameters& needed,
                              std::span<const std::byte> values)
    : bytes(std::ssize(values)) {
  const std::byte* next = values.data();
  for (const auto& [id, part] : needed) {
    const model::TensorSpec& spec = graph.tensor(id);
    const DType type = sent_as(graph, id);
    KeptVector<float>& tensor = tensors[id];
    tensor.resize(static_cast<std::size_t>(spec.elements()));
    for_needed(spec, part, [&](std::int64_t first, std::int64_t count) {
      kernels::from_wire(type, next, {tensor.data() + first, 1, count});
      next += count * size_of(type);
    });
  }
}

StageWorker::Weights::Weights(const model::StepGraph& graph, const NeededParameters& needed, Parameters places)
    : in_place(std::move(places)), bytes(bytes_of(graph, needed)) {}

Parameters StageWorker::Weights::parameters(const model::StepGraph& graph) const {
  if (in_place) return in_place;
  return [this, &graph](TensorId id) {
    const model::TensorSpec& spec = graph.tensor(id);
    return kernels::ConstRows(tensors.at(id).data(), spec.rows, spec.cols);
  };
}

StageWorker::Replica::Replica(PieceTable& table, kernels::Parallel& parallel, ChunkMemory& memory, std::int64_t from,
                              std::int64_t to, std::unique_ptr<Weights> of, bool keeps_values)
    : first(from), end(to), weights(std::move(of)), keeps(keeps_values) {
  for (std::int64_t piece = first; piece < end; ++piece) {
    const Program& program = table.program(piece);
    runs.push_back(
        std::make_unique<ChunkRun>(program, table.graph().wire, parallel, memory, weights->parameters(table.graph())));
    stateless = stateless && !program.has_logits() && program.attention() == nullptr;
    part = program.is_part();  // it is a stage of its own
    if (part) {
      forward.push_back(program.forward_to_logits());
      keys_values.emplace_back();
    } else if (!program.has_logits()) {
      forward.push_back(program.forward(program.outputs()));
      keys_values.push_back(program.forward(program.keys_values()));
    }
  }
}

StageWorker::Replica* StageWorker::replica_of(std::int32_t stage) {
  const auto found = replicas_.find(stage);
  return found == replicas_.end() ? nullptr : found->second.get();
}

void StageWorker::drop_stage(std::int32_t stage) {
  replicas_.erase(stage);
  for (auto* visits : {&forward_, &backward_, &waiting_}) {
    std::erase_if(*visits, [&](const auto& entry) {
      const auto& [of_stage, sequence] = entry.first;
      if (of_stage == stage) forget_operands(entry.second, sequence);
      return of_stage == stage;
    });
  }
}

bool StageWorker::is_head(std::int32_t stage) const {
  const auto found = replicas_.find(stage);
  return found != replicas_.end() && found->second->forward.empty();
}

bool StageWorker::is_part(std::int32_t stage) const {
  const auto found = replicas_.find(stage);
  return found != replicas_.end() && found->second->part;
}

std::int64_t StageWorker::norms_of(std::int32_t stage) const {
  const auto found = replicas_.find(stage);
  return found == replicas_.end() ? 0 : norm_elements(table_, found->second->first, found->second->end);
}

bool StageWorker::fits(const Chunk& chunk) const {
  const bool cut = chunk.row % kernels::kTokenBlock == 0 &&
                   (chunk.rows % kernels::kTokenBlock == 0 || chunk.row + chunk.rows == seq_);
  return chunk.sequence >= 0 && chunk.row >= 0 && chunk.rows > 0 && chunk.rows <= seq_ - chunk.row && cut;
}

bool StageWorker::can_hold(std::int64_t first, std::int64_t end) {
  if (first < 0 || end <= first || end > table_.size()) return false;
  return end - first == 1 || !table_.program(end - 1).has_logits();  // it is a stage of its own
}

StageWorker::Status StageWorker::take_stage(std::int32_t stage, std::int64_t first, std::int64_t end,
                                            std::unique_ptr<Weights> weights, Replay replay) {
  auto held =
      std::make_unique<Replica>(table_, parallel_, memory_, first, end, std::move(weights), replay == Replay::kept);
  if (held->keeps) {
    for (const std::unique_ptr<ChunkRun>& run : held->runs) run->pack_weights(pool_);
  }
  replicas_[stage] = std::move(held);
  return Status::ok;
}

StageWorker::Status StageWorker::hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end,
                                            std::span<const std::byte> weights, Replay replay) {
  if (!can_hold(first, end)) return Status::malformed;
  const NeededParameters needed = parameters_of_stage(table_, first, end);
  if (std::ssize(weights) != bytes_of_stage(table_, first, end)) return Status::malformed;
  const auto of_weights = static_cast<std::size_t>(bytes_of(table_.graph(), needed));
  const Status status = take_stage(
      stage, first, end, std::make_unique<Weights>(table_.graph(), needed, weights.first(of_weights)), replay);
  const std::span<const std::byte> exponents = weights.subspan(of_weights);
  if (exponents.empty()) return status;  // no part of the head
  KeptVector<std::int16_t>& kept = replicas_.at(stage)->column_exponents;
  kept.resize(exponents.size() / sizeof(std::int16_t));
  std::memcpy(kept.data(), exponents.data(), kept.size() * sizeof(std::int16_t));
  return status;
}

StageWorker::Status StageWorker::hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end,
                                            Parameters weights, Replay replay) {
  if (!can_hold(first, end) || table_.program(first).is_part()) return Status::malformed;
  const NeededParameters needed = parameters_of_stage(table_, first, end);
  return take_stage(stage, first, end, std::make_unique<Weights>(table_.graph(), needed, std::move(weights)), replay);
}

void StageWorker::forget_operands(const Visit& visit, std::int64_t sequence) {
  for (const std::int32_t owner : visit.owners) kept_.erase({owner, sequence});
}

// Who is begun here again is begun anew. The other way is another visit: X may be here for the backward pass while
// another replica's forward pass is made good.
void StageWorker::forget(std::map<OfSequence, Visit>& visits, std::int32_t stage, std::int64_t sequence) {
  if (const auto at = visits.find({stage, sequence}); at != visits.end()) {
    forget_operands(at->second, sequence);
    visits.erase(at);
  }
  waiting_.erase({stage, sequence});
  passed_.erase({stage, sequence});
}

StageWorker::Visit& StageWorker::open_forward(Replica& replica, const Chunk& chunk, bool keeps) {
  forget(forward_, chunk.stage, chunk.sequence);
  Visit& visit = forward_[{chunk.stage, chunk.sequence}];
  for (std::int64_t piece = replica.first; piece < replica.end; ++piece) {
    visit.states.push_back(replica.runs[static_cast<std::size_t>(piece - replica.first)]->open_forward());
    if (keeps) visit.kept.emplace_back(table_.program(piece), pool_);
  }
  return visit;
}

StageWorker::Status StageWorker::forward(const Chunk& chunk, std::span<const float> x, std::span<float> y,
                                         bool goes_back) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t elements = chunk.rows * table_.piece(replica->first).width;
  if (!fits(chunk) || replica->forward.empty() || replica->part || std::ssize(x) != elements) return Status::malformed;
  if (!y.empty() && std::ssize(y) != elements) return Status::malformed;
  // Another replica, which is lost, may have had the chunks before this one.
  const bool goes_on = replica->stateless && !replica->keeps && !forward_.contains({chunk.stage, chunk.sequence});
  const bool back_already = backward_.contains({chunk.stage, chunk.sequence});
  if (chunk.row == 0 || goes_on)
    open_forward(*replica, chunk, replica->keeps && goes_back && !back_already).next = chunk.row;
  const auto at = forward_.find({chunk.stage, chunk.sequence});
  if (at == forward_.end() || at->second.next != chunk.row) return Status::absent;
  Visit& visit = at->second;
  KeptVector<float> between[2];
  const float* in = x.data();
  for (std::int64_t piece = replica->first; piece < replica->end; ++piece) {
    const auto i = static_cast<std::size_t>(piece - replica->first);
    const Program& program = table_.program(piece);
    ChunkRun& run = *replica->runs[i];
    run.begin(chunk.row, chunk.rows, visit.kept.empty() ? nullptr : &visit.kept[i]);
    run.place(program.x(), only_read(in));
    if (const kernels::Rows kept = run.rows_of(program.x()); kept.data != in)
      put_rows({in, static_cast<std::size_t>(elements)}, kept);
    float* out = nullptr;
    if (piece + 1 == replica->end) {
      out = where(y);
    } else if (!visit.kept.empty()) {
      out = visit.kept[i + 1].rows(program.y(), chunk.row, chunk.rows).data;
    }
    if (out == nullptr) {
      between[i % 2].resize(static_cast<std::size_t>(elements));
      out = between[i % 2].data();
    }
    run.place(program.y(), out);
    try {
      run.run(replica->forward[i], visit.states[i]);
    } catch (const CheckFailure&) { return Status::diverged; }
    in = out;
  }
  if (!kernels::all_finite({in, static_cast<std::size_t>(elements)})) return Status::diverged;
  visit.next += chunk.rows;
  if (visit.next < seq_) return Status::ok;
  if (!visit.kept.empty()) waiting_[{chunk.stage, chunk.sequence}] = std::move(visit);
  forward_.erase(at);
  return Status::ok;
}

void StageWorker::open_back(Replica& replica, Visit& visit, std::int32_t stage, std::int64_t sequence, bool of_kept,
                            std::int32_t for_owner) {
  visit.back.clear();
  visit.owners.clear();
  for (const auto& [number, owner] : owners_) {
    if ((for_owner != kForAllOwners && for_owner != number) || owner->stage != stage || owner->weights ||
        owner->first != replica.first || owner->end != replica.end)
      continue;
    visit.owners.push_back(number);
    kept_[{number, sequence}].clear();
    if (of_kept) kept_.erase({number, sequence});
  }
  for (std::int64_t piece = replica.first; piece < replica.end; ++piece) {
    const auto i = static_cast<std::size_t>(piece - replica.first);
    const Program& program = table_.program(piece);
    SequenceState fresh = replica.runs[i]->open_backward();
    if (i < visit.states.size()) {  // keys and values are there
      visit.states[i].key_gradients = std::move(fresh.key_gradients);
      visit.states[i].value_gradients = std::move(fresh.value_gradients);
    } else {
      visit.states.push_back(std::move(fresh));
    }
    Wanted wanted = program.is_part() ? program.logit_gradient() : program.input_gradient();
    for (const std::int32_t number : visit.owners) {
      for (const Region& region : owners_.at(number)->steps.regions) {
        if (std::ranges::find(program.sums(), region.op) == program.sums().end()) continue;
        const SumInstruction sum = region.sum();
        for (const auto& [tensor, columns] : Program::operands_of(std::span(&sum, 1))) wanted[tensor].add(columns);
      }
    }
    visit.back.push_back(of_kept && !program.has_logits() ? program.back_of_kept(wanted)
                                                          : program.back(wanted, program.is_part()));
  }
}

void StageWorker::close_back(std::map<OfSequence, Visit>& visits, std::map<OfSequence, Visit>::iterator at) {
  Visit& visit = at->second;
  if (!visit.kept.empty() && !visit.owners.empty())
    passed_[at->first] = {std::make_shared<const std::vector<KeptValues>>(std::move(visit.kept)),
                          std::move(visit.owners)};
  visits.erase(at);
}

void StageWorker::go_back(Replica& replica, Visit& visit, const Chunk& chunk, std::span<const float> dy,
                          std::span<float> dx, std::span<const std::int32_t> targets) {
  KeptVector<float> between[2];
  const float* in = dy.data();
  for (std::int64_t piece = replica.end; piece-- > replica.first;) {
    const auto i = static_cast<std::size_t>(piece - replica.first);
    const auto elements = static_cast<std::size_t>(chunk.rows * table_.piece(piece).width);
    const Program& program = table_.program(piece);
    ChunkRun& run = *replica.runs[i];
    const bool kept = !visit.kept.empty();
    run.begin(chunk.row, chunk.rows, kept ? &visit.kept[i] : nullptr);
    if (!kept)
      run.place(program.x(),
                only_read(rows_of_sequence(visit.x[i], chunk.row, chunk.rows, table_.piece(piece).width).data()));
    if (program.dy().valid()) {
      run.place(program.dy(), only_read(in));
      if (const kernels::Rows rows = run.rows_of(program.dy()); rows.data != in) put_rows({in, elements}, rows);
    }
    float* out = nullptr;
    if (program.dx().valid()) {
      if (piece == replica.first) {
        out = where(dx);
      } else if (kept) {
        out = visit.kept[i - 1].rows(program.dx(), chunk.row, chunk.rows).data;
      }
      if (out == nullptr) {
        between[i % 2].resize(elements);
        out = between[i % 2].data();
      }
      run.place(program.dx(), out);
    }
    run.run(visit.back[i], visit.states[i], targets);
    for (const std::int32_t number : visit.owners) {
      const auto owner = owners_.find(number);
      if (owner == owners_.end() || kept) continue;
      keep_operands(owner->second->steps.regions, piece, run, chunk, kept_[{number, chunk.sequence}]);
    }
    in = out;
  }
}

StageWorker::Status StageWorker::head(const Chunk& chunk, std::span<const float> x,
                                      std::span<const std::int32_t> targets, const HeadResults& results,
                                      std::int32_t for_owner) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const Program& program = table_.program(replica->first);
  const std::int64_t width = table_.piece(replica->first).width;
  const bool last = chunk.row + chunk.rows == seq_, wanted = !results.top.empty();
  const auto is = [](auto span, std::int64_t size) { return std::ssize(span) == size; };
  if (!fits(chunk) || !is_head(chunk.stage) || !is(x, chunk.rows * width) || !is(targets, chunk.rows))
    return Status::malformed;
  if (!are_words(targets)) return Status::malformed;
  if (wanted && (!is(results.top, chunk.rows) || !is(results.sum, chunk.rows) || !is(results.loss, chunk.rows) ||
                 !is(results.dx, chunk.rows * width) ||
                 !is(results.norms, last ? norm_elements(table_, replica->first, replica->end) : 0)))
    return Status::malformed;
  if (chunk.row == 0) {
    Visit& begun = open_forward(*replica, chunk, replica->keeps && for_owner != kForNoOwner);
    open_back(*replica, begun, chunk.stage, chunk.sequence, !begun.kept.empty(), for_owner);
    if (begun.kept.empty()) begun.x.emplace_back(static_cast<std::size_t>(seq_ * width));
  }
  const auto at = forward_.find({chunk.stage, chunk.sequence});
  if (at == forward_.end() || at->second.next != chunk.row) return Status::absent;
  Visit& visit = at->second;
  if (const kernels::Rows kept =
          visit.kept.empty() ? kernels::Rows() : visit.kept[0].rows(program.x(), chunk.row, chunk.rows);
      kept.data != nullptr) {
    put_rows(x, kept);
  } else {
    visit.x.resize(1);
    visit.x[0].resize(static_cast<std::size_t>(seq_ * width));
    std::ranges::copy(x, visit.x[0].begin() + chunk.row * width);
  }
  ChunkRun& run = *replica->runs[0];
  if (!program.dx().valid()) std::ranges::fill(results.dx, 0.0F);  // nothing below is trained
  try {
    go_back(*replica, visit, chunk, {}, results.dx, targets);
  } catch (const CheckFailure&) { return Status::diverged; }
  if (wanted) {
    const RowSums& rows = run.row_sums();
    std::ranges::copy(rows.top, results.top.begin());
    std::ranges::copy(rows.sum, results.sum.begin());
    std::ranges::copy(rows.loss, results.loss.begin());
    if (last) return_norms(*replica, visit, results.norms);
    const bool finite = std::ranges::all_of(rows.loss, [](double loss) { return std::isfinite(loss); });
    if (!finite || !kernels::all_finite(results.dx)) return Status::diverged;
  }
  visit.next += chunk.rows;
  if (last) close_back(forward_, at);
  return Status::ok;
}

bool StageWorker::are_words(std::span<const std::int32_t> targets) const {
  return std::ranges::all_of(targets, [&](std::int32_t t) { return t >= 0 && t < table_.vocabulary(); });
}

StageWorker::Status StageWorker::part(const Chunk& chunk, std::span<const float> x,
                                      std::span<const std::int32_t> targets, const PartResults& results) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  if (!replica->part) return Status::malformed;
  const model::Piece& piece = table_.piece(replica->first);
  const Program& program = table_.program(replica->first);
  const auto is = [](auto span, std::int64_t size) { return std::ssize(span) == size; };
  const std::int64_t sums = chunk.rows * piece.part.blocks;
  if (!fits(chunk) || !is(x, chunk.rows * piece.width) || !is(targets, chunk.rows) || !are_words(targets))
    return Status::malformed;
  const bool wanted = !results.tops.empty();
  if (wanted && (!is(results.tops, sums) || !is(results.sums, sums) || !is(results.target_logits, chunk.rows)))
    return Status::malformed;
  if (!wanted) return Status::ok;  // nothing is kept for later chunks
  ChunkRun& run = *replica->runs[0];
  run.begin(chunk.row, chunk.rows);
  run.place(program.x(), only_read(x.data()));
  SequenceState state = run.open_forward();
  try {
    run.run(replica->forward[0], state);
  } catch (const CheckFailure&) { return Status::diverged; }
  const Columns part = program.vocabulary();
  const kernels::Rows logits = run.rows_of(program.logits()).columns(part.begin, part.end);
  kernels::cross_entropy_blocks(parallel_, logits, results.tops, results.sums);
  for (std::int64_t i = 0; i < chunk.rows; ++i) {
    const std::int64_t target = targets[static_cast<std::size_t>(i)] - part.begin;
    results.target_logits[static_cast<std::size_t>(i)] =
        target >= 0 && target < part.count() ? logits.row(i)[target] : 0.0F;
  }
  return kernels::all_finite(results.tops) && kernels::all_finite(results.sums) ? Status::ok : Status::diverged;
}

StageWorker::Status StageWorker::part_backward(const Chunk& chunk, const PartOperands& rows,
                                               std::span<std::byte> sums) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  if (!replica->part) return Status::malformed;
  const Program& program = table_.program(replica->first);
  const std::int64_t width = table_.piece(replica->first).width;
  const DType type = partial_sum_type(table_.graph().wire);
  const auto is = [](auto span, std::int64_t size) { return std::ssize(span) == size; };
  if (!fits(chunk) || !is(rows.top, chunk.rows) || !is(rows.sum, chunk.rows) || !is(rows.targets, chunk.rows) ||
      !are_words(rows.targets) || (!sums.empty() && !is(sums, chunk.rows * width * size_of(type))))
    return Status::malformed;
  const auto at = backward_.find({chunk.stage, chunk.sequence});
  if (at == backward_.end() || at->second.next != chunk.row + chunk.rows) return Status::absent;
  Visit& visit = at->second;
  ChunkRun& run = *replica->runs[0];
  run.begin(chunk.row, chunk.rows);
  run.place(program.x(), only_read(rows_of_sequence(visit.x[0], chunk.row, chunk.rows, width).data()));
  run.know_row_sums(rows.top, rows.sum);
  try {
    run.run(visit.back[0], visit.states[0], rows.targets);
    if (!sums.empty()) run.multiply_part(replica->column_exponents, {type, sums.data(), width});
  } catch (const CheckFailure&) { return Status::diverged; }
  for (const std::int32_t number : visit.owners) {
    const auto owner = owners_.find(number);
    if (owner == owners_.end()) continue;
    keep_operands(owner->second->steps.regions, replica->first, run, chunk, kept_[{number, chunk.sequence}]);
  }
  visit.next = chunk.row;
  if (chunk.row == 0) close_back(backward_, at);
  return Status::ok;
}

StageWorker::Status StageWorker::recompute(std::int32_t stage, std::int64_t sequence, std::span<const float> x,
                                           std::int32_t for_owner) {
  Replica* const replica = replica_of(stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t width = table_.piece(replica->first).width;
  if (replica->forward.empty() || sequence < 0 || std::ssize(x) != seq_ * width) return Status::malformed;
  forget(backward_, stage, sequence);
  Visit& visit = backward_[{stage, sequence}];
  open_back(*replica, visit, stage, sequence, false, for_owner);
  visit.next = seq_;
  visit.x.emplace_back(x.begin(), x.end());
  for (std::int64_t piece = replica->first; piece < replica->end; ++piece) {
    const auto i = static_cast<std::size_t>(piece - replica->first);
    const Program& program = table_.program(piece);
    const bool top = piece + 1 == replica->end;
    if (top && program.attention() == nullptr) break;
    if (!top) visit.x.emplace_back(static_cast<std::size_t>(seq_ * table_.piece(piece + 1).width));
    ChunkRun& run = *replica->runs[i];
    for (std::int64_t row = 0; row < seq_; row += kRowsAtOnce) {
      const std::int64_t rows = std::min(kRowsAtOnce, seq_ - row);
      run.begin(row, rows);
      put_rows(rows_of_sequence(visit.x[i], row, rows, table_.piece(piece).width), run.rows_of(program.x()));
      try {
        run.run(top ? replica->keys_values[i] : replica->forward[i], visit.states[i]);
      } catch (const CheckFailure&) { return Status::diverged; }
      if (top) {
        run.keep_keys_values(visit.states[i]);
      } else {
        take_rows(run.rows_of(program.y()), visit.x[i + 1].data() + row * table_.piece(piece + 1).width);
      }
    }
  }
  return Status::ok;
}

StageWorker::Status StageWorker::backward(const Chunk& chunk, std::span<const float> dy, std::span<float> dx,
                                          std::span<float> norms, std::int32_t for_owner) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t elements = chunk.rows * table_.piece(replica->first).width;
  if (!fits(chunk) || replica->forward.empty() || replica->part || std::ssize(dy) != elements) return Status::malformed;
  if (!dx.empty() && std::ssize(dx) != elements) return Status::malformed;
  if (!norms.empty() && (chunk.row > 0 || std::ssize(norms) != norm_elements(table_, replica->first, replica->end)))
    return Status::malformed;
  if (const auto kept = waiting_.find({chunk.stage, chunk.sequence}); kept != waiting_.end()) {
    open_back(*replica, kept->second, chunk.stage, chunk.sequence, true, for_owner);
    kept->second.next = seq_;
    backward_[kept->first] = std::move(kept->second);
    waiting_.erase(kept);
  }
  const auto at = backward_.find({chunk.stage, chunk.sequence});
  if (at == backward_.end() || at->second.next != chunk.row + chunk.rows) return Status::absent;
  Visit& visit = at->second;
  if (!table_.program(replica->first).dx().valid()) std::ranges::fill(dx, 0.0F);
  try {
    go_back(*replica, visit, chunk, dy, dx, {});
  } catch (const CheckFailure&) { return Status::diverged; }
  if (!kernels::all_finite(dx)) return Status::diverged;
  if (!norms.empty()) return_norms(*replica, visit, norms);
  visit.next = chunk.row;
  if (chunk.row == 0) close_back(backward_, at);
  return Status::ok;
}

void StageWorker::return_norms(const Replica& replica, const Visit& visit, std::span<float> norms) const {
  for (std::int64_t piece = replica.first; piece < replica.end; ++piece) {
    if (!table_.piece(piece).backward) continue;
    const auto& sums = visit.states[static_cast<std::size_t>(piece - replica.first)].norm_sums;
    const auto count = static_cast<std::size_t>(table_.piece(piece).norm_elements);
    if (sums.size() == count) {
      kernels::finish_token_sums(sums, norms.first(count));
    } else {
      std::ranges::fill(norms.first(count), 0.0F);  // none is trained
    }
    norms = norms.subspan(count);
  }
}

Bytes StageWorker::memory() const {
  const std::int64_t wire = size_of(table_.graph().wire);
  std::int64_t sum = 0;
  for (const auto& entry : replicas_) {
    sum += entry.second->weights->bytes + std::ssize(entry.second->column_exponents) * 2;
    for (const std::unique_ptr<ChunkRun>& run : entry.second->runs) sum += run->packed().value();
  }
  for (const auto* visits : {&forward_, &backward_, &waiting_}) {
    for (const auto& entry : *visits) {
      for (const KeptValues& kept : entry.second.kept) sum += kept.bytes().value();
      for (const SequenceState& state : entry.second.states)
        sum += (std::ssize(state.keys) + std::ssize(state.values)) * wire +
               (std::ssize(state.key_gradients) + std::ssize(state.value_gradients)) * 4 +
               std::ssize(state.norm_sums) * 8;
      for (const KeptVector<float>& x : entry.second.x) sum += std::ssize(x) * wire;
    }
  }
  for (const auto& entry : owners_) {
    if (entry.second->weights) sum += entry.second->weights->bytes;
    for (const kernels::TokenSumMatrix& sums : entry.second->sums) sum += sums.memory().value();
  }
  std::set<const std::vector<KeptValues>*> passed;  // which owners share
  for (const auto& entry : passed_) passed.insert(entry.second.kept.get());
  for (const auto& entry : owners_) {
    for (const auto& kept : entry.second->late_operands) passed.insert(kept.get());
  }
  for (const std::vector<KeptValues>* of : passed) {
    for (const KeptValues& kept : *of) sum += kept.bytes().value();
  }
  for (const auto& entry : kept_) {
    for (const auto& operand : entry.second) sum += std::ssize(operand.second) * wire;
  }
  return Bytes(sum);
}

}  // namespace cleave::pieces
