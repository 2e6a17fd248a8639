// Replicas: weights in, sequences through. Owners are in stage_sums.cpp.
#include "cleave/pieces/stage_worker.hpp"

#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "stage_worker_state.hpp"

namespace cleave::pieces {

namespace {

void put_rows(std::span<const float> from, kernels::Rows to) {
  for (std::int64_t i = 0; i < to.rows; ++i) std::copy_n(from.data() + i * to.cols, to.cols, to.row(i));
}

void take_rows(kernels::ConstRows from, float* to) {
  for (std::int64_t i = 0; i < from.rows; ++i) std::copy_n(from.row(i), from.cols, to + i * from.cols);
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
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
  kept_.clear();
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

Parameters StageWorker::Weights::parameters(const model::StepGraph& graph) const {
  return [this, &graph](TensorId id) {
    const model::TensorSpec& spec = graph.tensor(id);
    return kernels::ConstRows(tensors.at(id).data(), spec.rows, spec.cols);
  };
}

StageWorker::Replica::Replica(PieceTable& table, kernels::Parallel& parallel, std::int64_t from, std::int64_t to,
                              std::unique_ptr<Weights> of)
    : first(from), end(to), weights(std::move(of)) {
  for (std::int64_t piece = first; piece < end; ++piece) {
    const Program& program = table.program(piece);
    runs.push_back(
        std::make_unique<ChunkRun>(program, table.graph().wire, parallel, weights->parameters(table.graph())));
    if (!program.is_head()) {
      forward.push_back(program.forward(program.outputs()));
      keys_values.push_back(program.forward(program.keys_values()));
    }
  }
}

StageWorker::Replica* StageWorker::replica_of(std::int32_t stage) {
  const auto found = replicas_.find(stage);
  return found == replicas_.end() ? nullptr : found->second.get();
}

bool StageWorker::is_head(std::int32_t stage) const {
  const auto found = replicas_.find(stage);
  return found != replicas_.end() && found->second->forward.empty();
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

StageWorker::Status StageWorker::hold_stage(std::int32_t stage, std::int64_t first, std::int64_t end,
                                            std::span<const std::byte> weights) {
  if (first < 0 || end <= first || end > table_.size()) return Status::malformed;
  if (table_.program(end - 1).is_head() && end - first > 1) return Status::malformed;  // it is a stage of its own
  const NeededParameters needed = parameters_of_stage(table_, first, end);
  if (std::ssize(weights) != bytes_of(table_.graph(), needed)) return Status::malformed;
  replicas_[stage] = std::make_unique<Replica>(table_, parallel_, first, end,
                                               std::make_unique<Weights>(table_.graph(), needed, weights));
  return Status::ok;
}

StageWorker::Status StageWorker::forward(const Chunk& chunk, std::span<const float> x, std::span<float> y) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t elements = chunk.rows * table_.piece(replica->first).width;
  if (!fits(chunk) || replica->forward.empty() || std::ssize(x) != elements) return Status::malformed;
  if (!y.empty() && std::ssize(y) != elements) return Status::malformed;
  if (chunk.row == 0) {  // who was begun here before is begun anew
    Visit& begun = forward_[{chunk.stage, chunk.sequence}] = Visit{};
    for (const std::unique_ptr<ChunkRun>& run : replica->runs) begun.states.push_back(run->open_forward());
  }
  const auto at = forward_.find({chunk.stage, chunk.sequence});
  if (at == forward_.end() || at->second.next != chunk.row) return Status::absent;
  Visit& visit = at->second;
  KeptVector<float> between(x.begin(), x.end());
  for (std::int64_t piece = replica->first; piece < replica->end; ++piece) {
    const auto i = static_cast<std::size_t>(piece - replica->first);
    const Program& program = table_.program(piece);
    ChunkRun& run = *replica->runs[i];
    run.begin(chunk.row, chunk.rows);
    put_rows(between, run.rows_of(program.x()));
    try {
      run.run(replica->forward[i], visit.states[i]);
    } catch (const CheckFailure&) { return Status::diverged; }
    take_rows(run.rows_of(program.y()), between.data());
  }
  if (!all_finite(between)) return Status::diverged;
  if (!y.empty()) std::ranges::copy(between, y.begin());
  visit.next += chunk.rows;
  if (visit.next == seq_) forward_.erase(at);
  return Status::ok;
}

StageWorker::Visit& StageWorker::open_back(Replica& replica, std::map<OfSequence, Visit>& visits, std::int32_t stage,
                                           std::int64_t sequence, bool for_sums) {
  Visit& visit = visits[{stage, sequence}] = Visit{};
  for (const auto& [number, owner] : owners_) {
    if (!for_sums || owner->stage != stage || owner->weights || owner->first != replica.first ||
        owner->end != replica.end)
      continue;
    visit.owners.push_back(number);
    kept_[{number, sequence}].clear();
  }
  for (std::int64_t piece = replica.first; piece < replica.end; ++piece) {
    const Program& program = table_.program(piece);
    visit.states.push_back(replica.runs[static_cast<std::size_t>(piece - replica.first)]->open_backward());
    Wanted wanted = program.input_gradient();
    for (const std::int32_t number : visit.owners) {
      for (const Region& region : owners_.at(number)->steps.regions) {
        if (std::ranges::find(program.sums(), region.op) == program.sums().end()) continue;
        const SumInstruction sum = region.sum();
        for (const auto& [tensor, columns] : Program::operands_of(std::span(&sum, 1))) wanted[tensor].add(columns);
      }
    }
    visit.back.push_back(program.back(wanted));
  }
  return visit;
}

void StageWorker::go_back(Replica& replica, Visit& visit, const Chunk& chunk, std::span<const float> dy,
                          std::span<const std::int32_t> targets) {
  KeptVector<float> between(dy.begin(), dy.end());
  for (std::int64_t piece = replica.end; piece-- > replica.first;) {
    const auto i = static_cast<std::size_t>(piece - replica.first);
    const Program& program = table_.program(piece);
    ChunkRun& run = *replica.runs[i];
    run.begin(chunk.row, chunk.rows);
    put_rows(rows_of_sequence(visit.x[i], chunk.row, chunk.rows, table_.piece(piece).width), run.rows_of(program.x()));
    if (program.dy().valid()) put_rows(between, run.rows_of(program.dy()));
    run.run(visit.back[i], visit.states[i], targets);
    for (const std::int32_t number : visit.owners) {
      const auto owner = owners_.find(number);
      if (owner == owners_.end()) continue;
      keep_operands(owner->second->steps.regions, piece, run, chunk, kept_[{number, chunk.sequence}]);
    }
    if (program.dx().valid()) {
      between.resize(static_cast<std::size_t>(chunk.rows * table_.piece(piece).width));
      take_rows(run.rows_of(program.dx()), between.data());
    }
  }
}

StageWorker::Status StageWorker::head(const Chunk& chunk, std::span<const float> x,
                                      std::span<const std::int32_t> targets, const HeadResults& results,
                                      bool for_sums) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const Program& program = table_.program(replica->first);
  const std::int64_t width = table_.piece(replica->first).width, vocabulary = table_.piece(replica->first).units;
  const bool last = chunk.row + chunk.rows == seq_, wanted = !results.top.empty();
  const auto is = [](auto span, std::int64_t size) { return std::ssize(span) == size; };
  if (!fits(chunk) || !program.is_head() || !is(x, chunk.rows * width) || !is(targets, chunk.rows))
    return Status::malformed;
  if (std::ranges::any_of(targets, [&](std::int32_t t) { return t < 0 || t >= vocabulary; })) return Status::malformed;
  if (wanted && (!is(results.top, chunk.rows) || !is(results.sum, chunk.rows) || !is(results.loss, chunk.rows) ||
                 !is(results.dx, chunk.rows * width) ||
                 !is(results.norms, last ? norm_elements(table_, replica->first, replica->end) : 0)))
    return Status::malformed;
  if (chunk.row == 0) {
    Visit& begun = open_back(*replica, forward_, chunk.stage, chunk.sequence, for_sums);
    begun.x.emplace_back(static_cast<std::size_t>(seq_ * width));
  }
  const auto at = forward_.find({chunk.stage, chunk.sequence});
  if (at == forward_.end() || at->second.next != chunk.row) return Status::absent;
  Visit& visit = at->second;
  std::ranges::copy(x, visit.x[0].begin() + chunk.row * width);
  ChunkRun& run = *replica->runs[0];
  try {
    go_back(*replica, visit, chunk, {}, targets);
  } catch (const CheckFailure&) { return Status::diverged; }
  if (wanted) {
    const RowSums& rows = run.row_sums();
    std::ranges::copy(rows.top, results.top.begin());
    std::ranges::copy(rows.sum, results.sum.begin());
    std::ranges::copy(rows.loss, results.loss.begin());
    std::ranges::fill(results.dx, 0.0F);  // where nothing below is trained
    if (program.dx().valid()) take_rows(run.rows_of(program.dx()), results.dx.data());
    if (last) return_norms(*replica, visit, results.norms);
    const bool finite = std::ranges::all_of(rows.loss, [](double loss) { return std::isfinite(loss); });
    if (!finite || !all_finite(results.dx)) return Status::diverged;
  }
  visit.next += chunk.rows;
  if (last) forward_.erase(at);
  return Status::ok;
}

StageWorker::Status StageWorker::remake(std::int32_t stage, std::int64_t sequence, std::span<const float> x,
                                        bool for_sums) {
  Replica* const replica = replica_of(stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t width = table_.piece(replica->first).width;
  if (replica->forward.empty() || sequence < 0 || std::ssize(x) != seq_ * width) return Status::malformed;
  Visit& visit = open_back(*replica, backward_, stage, sequence, for_sums);
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
                                          std::span<float> norms) {
  Replica* const replica = replica_of(chunk.stage);
  if (replica == nullptr) return Status::absent;
  const std::int64_t elements = chunk.rows * table_.piece(replica->first).width;
  if (!fits(chunk) || replica->forward.empty() || std::ssize(dy) != elements) return Status::malformed;
  if (!dx.empty() && std::ssize(dx) != elements) return Status::malformed;
  if (!norms.empty() && (chunk.row > 0 || std::ssize(norms) != norm_elements(table_, replica->first, replica->end)))
    return Status::malformed;
  const auto at = backward_.find({chunk.stage, chunk.sequence});
  if (at == backward_.end() || at->second.next != chunk.row + chunk.rows) return Status::absent;
  Visit& visit = at->second;
  try {
    go_back(*replica, visit, chunk, dy, {});
  } catch (const CheckFailure&) { return Status::diverged; }
  const Program& lowest = table_.program(replica->first);
  if (!dx.empty()) {
    std::ranges::fill(dx, 0.0F);
    if (lowest.dx().valid()) take_rows(replica->runs[0]->rows_of(lowest.dx()), dx.data());
    if (!all_finite(dx)) return Status::diverged;
  }
  if (!norms.empty()) return_norms(*replica, visit, norms);
  visit.next = chunk.row;
  if (chunk.row == 0) backward_.erase(at);
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
  for (const auto& entry : replicas_) sum += entry.second->weights->bytes;
  for (const auto* visits : {&forward_, &backward_}) {
    for (const auto& entry : *visits) {
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
  for (const auto& entry : kept_) {
    for (const auto& operand : entry.second) sum += std::ssize(operand.second) * wire;
  }
  return Bytes(sum);
}

}  // namespace cleave::pieces
