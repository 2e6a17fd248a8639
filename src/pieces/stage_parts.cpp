// Everything follows from the instructions of the programs.
#include "cleave/pieces/stage_parts.hpp"

#include <algorithm>

#include "cleave/base/error.hpp"

namespace cleave::pieces {

namespace {

using model::Operation;
using model::OpKind;

void need_lines(NeededParameters& needed, const model::StepGraph& graph, TensorId id, Columns run, bool rows) {
  const model::TensorSpec& spec = graph.tensor(id);
  const auto [found, is_new] = needed.try_emplace(id, NeededPart{{}, rows});
  if (found->second.rows != rows) {  // some rows and some columns: all of it
    found->second = {Columns{0, spec.rows}, true};
    return;
  }
  found->second.lines.add(run);
}

void need_whole(NeededParameters& needed, const model::StepGraph& graph, TensorId id) {
  needed[id] = {Columns{0, graph.tensor(id).rows}, true};
}

void need(NeededParameters& needed, const model::StepGraph& graph, std::span<const Instruction> instructions) {
  for (const Instruction& instruction : instructions) {
    const Operation& op = *instruction.op;
    if (op.kind == OpKind::gemm) {
      for (const Columns& run : instruction.columns[0].runs()) {
        const Columns lines{run.begin - op.out[0].col0, run.end - op.out[0].col0};
        need_lines(needed, graph, op.in[1].tensor, lines, op.trans_b);
      }
      continue;
    }
    for (const model::TensorView& in : op.in) {
      if (in.valid() && graph.tensor(in.tensor).role == model::TensorRole::parameter)
        need_whole(needed, graph, in.tensor);
    }
  }
}

Columns intersection(Columns a, Columns b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace

PieceTable::PieceTable(const model::StepGraph& graph) : graph_(&graph), pieces_(model::pieces_of(graph)) {
  const std::int64_t blocks = pieces_.empty() ? 0 : vocabulary_blocks(vocabulary());
  // Of heads in 2, 3, .. parts.
  programs_.resize(pieces_.size() + static_cast<std::size_t>(std::max<std::int64_t>(0, blocks * (blocks + 1) / 2 - 1)));
}

std::int64_t PieceTable::part_of_head(std::int64_t count, std::int64_t k) const {
  return count == 1 ? head() : std::ssize(pieces_) + count * (count - 1) / 2 - 1 + k;
}

const model::Piece& PieceTable::piece(std::int64_t index) {
  if (index <= head()) return pieces_[static_cast<std::size_t>(index)];
  if (const auto found = parts_.find(index); found != parts_.end()) return found->second;
  std::int64_t count = 2;
  while (index >= part_of_head(count + 1, 0)) ++count;
  std::vector<model::Piece> parts = model::head_parts(pieces_.back(), count);
  for (std::int64_t k = 0; k < count; ++k)
    parts_.emplace(part_of_head(count, k), std::move(parts[static_cast<std::size_t>(k)]));
  return parts_.at(index);
}

const Program& PieceTable::program(std::int64_t index) {
  std::unique_ptr<Program>& program = programs_[static_cast<std::size_t>(index)];
  if (program) return *program;
  if (index <= head()) {
    program = std::make_unique<Program>(*graph_, index);
  } else {
    const model::Piece& part = piece(index);
    program = std::make_unique<Program>(*graph_, head(), Columns{part.part.first, part.part.first + part.units});
  }
  return *program;
}

SumInstruction Region::sum() const {
  const model::TensorView& out = op->out[0];
  if (op->kind == OpKind::bias_gradient) return {op, Columns{cols.begin - out.col0, cols.end - out.col0}, {}};
  return {op, Columns{rows.begin - out.row0, rows.end - out.row0}, Columns{cols.begin - out.col0, cols.end - out.col0}};
}

std::vector<Region> regions_of(PieceTable& table, std::span<const UnitRange> slices) {
  const model::StepGraph& graph = table.graph();
  std::vector<Region> regions;
  for (const UnitRange& slice : slices) {
    const model::Piece& piece = table.piece(slice.piece);
    const std::span<const Operation* const> sums = table.program(slice.piece).sums();
    for (const model::SlicedTensor& tensor : piece.tensors) {
      if (!tensor.trained) continue;
      const Columns range{tensor.begin + slice.begin * tensor.extent / piece.units,
                          tensor.begin + slice.end * tensor.extent / piece.units};
      if (range.count() <= 0) continue;
      for (const Operation* op : sums) {
        const model::TensorView& out = op->out[0];
        if (graph.tensor(out.tensor).parameter != tensor.tensor) continue;
        Region region{op, tensor.tensor, {out.row0, out.row0 + out.rows}, {out.col0, out.col0 + out.cols}};
        Columns& cut = tensor.cut_rows ? region.rows : region.cols;
        cut = intersection(cut, range);
        if (cut.count() > 0) regions.push_back(region);
      }
    }
  }
  return regions;
}

DType sent_as(const model::StepGraph& graph, TensorId parameter) {
  return graph.tensor(parameter).vector ? DType::f32 : graph.wire;
}

std::int64_t bytes_of(const model::StepGraph& graph, const NeededParameters& parameters) {
  std::int64_t sum = 0;
  for (const auto& [id, part] : parameters) {
    const std::int64_t elements = part.lines.count() * (part.rows ? graph.tensor(id).cols : graph.tensor(id).rows);
    sum += elements * size_of(sent_as(graph, id));
  }
  return sum;
}

NeededParameters parameters_of_stage(PieceTable& table, std::int64_t first, std::int64_t end) {
  NeededParameters needed;
  for (std::int64_t i = first; i < end; ++i) {
    for (const model::SlicedTensor& tensor : table.piece(i).tensors) {
      if (table.piece(i).is_part()) {
        need_lines(needed, table.graph(), tensor.tensor, {tensor.begin, tensor.begin + tensor.extent}, tensor.cut_rows);
      } else {
        need_whole(needed, table.graph(), tensor.tensor);
      }
    }
    for (const TensorId norm : table.piece(i).norms) need_whole(needed, table.graph(), norm);
  }
  return needed;
}

std::int64_t bytes_of_stage(PieceTable& table, std::int64_t first, std::int64_t end) {
  const model::Piece& piece = table.piece(first);
  const std::int64_t exponents = piece.is_part() ? piece.width * static_cast<std::int64_t>(sizeof(std::int16_t)) : 0;
  return bytes_of(table.graph(), parameters_of_stage(table, first, end)) + exponents;
}

OwnerSteps steps_of_owner(PieceTable& table, std::int64_t first, std::int64_t end, std::span<const UnitRange> slices) {
  OwnerSteps steps;
  steps.regions = regions_of(table, slices);
  const std::int64_t lowest = slices.front().piece, highest = slices.back().piece;
  // What goes backward begins above the lowest slice, and its forward values must be there.
  const std::int64_t top = lowest + 1 < end ? end - 1 : highest;
  for (std::int64_t i = first; i <= top; ++i) {
    const Program& program = table.program(i);
    OwnerSteps::OfPiece of{.piece = i, .keys_values = {}, .forward = {}, .back = {}, .gives_dx = i > lowest};
    Wanted wanted = of.gives_dx ? program.input_gradient() : Wanted();
    std::vector<SumInstruction> sums;
    for (const Region& region : steps.regions) {
      if (std::ranges::find(program.sums(), region.op) != program.sums().end()) sums.push_back(region.sum());
    }
    for (const auto& [tensor, columns] : Program::operands_of(sums)) wanted[tensor].add(columns);
    if (i >= lowest) of.back = program.back(wanted, program.has_logits());
    if (i < top) {
      of.forward = program.forward(program.outputs());
    } else if (!of.back.empty() && program.attention() != nullptr) {
      of.keys_values = program.forward(program.keys_values_of(of.back));
    }
    steps.pieces.push_back(std::move(of));
  }
  return steps;
}

NeededParameters parameters_of(PieceTable& table, const OwnerSteps& steps) {
  NeededParameters needed;
  for (const OwnerSteps::OfPiece& of : steps.pieces) {
    need(needed, table.graph(), of.keys_values);
    need(needed, table.graph(), of.forward);
    need(needed, table.graph(), of.back);
  }
  return needed;
}

std::int64_t norm_elements(PieceTable& table, std::int64_t first, std::int64_t end) {
  std::int64_t sum = 0;
  for (std::int64_t i = first; i < end; ++i) {
    // Those of a head in parts are made from the gradients that the parts return.
    if (table.piece(i).backward && !table.piece(i).is_part()) sum += table.piece(i).norm_elements;
  }
  return sum;
}

}  // namespace cleave::pieces
