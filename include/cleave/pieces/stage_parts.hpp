// StageParts: what a stage, or an owner of slices of its gradient, is made of: programs of its pieces, the parameters
// that must be there, the places in gradients that an owner sums. Server and device derive it from the same graph, so
// messages need not say it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/model/pieces.hpp"
#include "cleave/pieces/program.hpp"

namespace cleave::pieces {

/// Units [begin, end) of a piece (model::SlicedTensor).
struct UnitRange {
  std::int64_t piece = 0, begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};

/// The pieces of a graph and their programs. A head can be cut into parts in several ways: the parts of each have
/// numbers of their own, after those of the graph's pieces, so a number says all.
class PieceTable {
 public:
  /// `graph`: as for Program; it must outlive the table.
  explicit PieceTable(const model::StepGraph& graph);
  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  /// With parts of the head.
  [[nodiscard]] std::int64_t size() const { return std::ssize(programs_); }
  /// Number of the whole head.
  [[nodiscard]] std::int64_t head() const { return std::ssize(pieces_) - 1; }
  /// Number of part k of a head in `count` parts; of one part, the head's. Requires: 0 <= k < count <= its vocabulary
  /// blocks.
  [[nodiscard]] std::int64_t part_of_head(std::int64_t count, std::int64_t k) const;
  /// Rows of the vocabulary.
  [[nodiscard]] std::int64_t vocabulary() const { return pieces_.back().units; }
  [[nodiscard]] const model::Piece& piece(std::int64_t index);
  /// Made when it is first asked for.
  [[nodiscard]] const Program& program(std::int64_t index);

 private:
  const model::StepGraph* graph_;
  std::vector<model::Piece> pieces_;
  std::map<std::int64_t, model::Piece> parts_;  // by number, made when they are first asked for
  std::vector<std::unique_ptr<Program>> programs_;
};

/// A rectangle of a parameter's gradient that one operation sums: rows and columns of the gradient's tensor. Of a bias
/// there is one row.
struct Region {
  const model::Operation* op = nullptr;
  TensorId parameter;
  Columns rows, cols;
  [[nodiscard]] std::int64_t elements() const { return rows.count() * cols.count(); }
  /// The columns of the operation's operands that it is made of.
  [[nodiscard]] SumInstruction sum() const;
};

/// The rectangles that units of pieces are, in order.
[[nodiscard]] std::vector<Region> regions_of(PieceTable& table, std::span<const UnitRange> slices);

/// Which part of a parameter is needed: rows, or columns, of it.
struct NeededPart {
  ColumnSet lines;
  bool rows = true;
  bool operator==(const NeededPart&) const = default;
};
/// By parameter, in order.
using NeededParameters = std::map<TensorId, NeededPart>;
/// As they are sent: products' weights in the wire type, vectors in 4 bytes.
[[nodiscard]] std::int64_t bytes_of(const model::StepGraph& graph, const NeededParameters& parameters);
/// The type in which a parameter is sent.
[[nodiscard]] DType sent_as(const model::StepGraph& graph, TensorId parameter);
/// Runs of a parameter's elements that are needed, in the order in which they are sent: calls use(first, count).
template <class Use>
void for_needed(const model::TensorSpec& spec, const NeededPart& part, const Use& use) {
  for (const Columns& run : part.lines.runs()) {
    const std::int64_t lines = part.rows ? 1 : spec.rows;
    const std::int64_t count = part.rows ? run.count() * spec.cols : run.count();
    const std::int64_t first = part.rows ? run.begin * spec.cols : run.begin;
    for (std::int64_t line = 0; line < lines; ++line) use(line * spec.cols + first, count);
  }
}

/// All parameters of pieces [first, end).
[[nodiscard]] NeededParameters parameters_of_stage(PieceTable& table, std::int64_t first, std::int64_t end);

/// As they are sent, with the exponents that a part of the head needs besides.
[[nodiscard]] std::int64_t bytes_of_stage(PieceTable& table, std::int64_t first, std::int64_t end);

/// What an owner of slices of a stage computes of a sequence that it has not run itself.
struct OwnerSteps {
  struct OfPiece {
    std::int64_t piece = 0;
    std::vector<Instruction> keys_values;  ///< where only those are wanted of the way forward
    std::vector<Instruction> forward;      ///< to y; empty: nobody above needs it
    std::vector<Instruction> back;         ///< operands of sums, and dx where it is wanted below; empty: nothing
    bool gives_dx = false;
  };
  std::vector<OfPiece> pieces;  ///< bottom first
  std::vector<Region> regions;
};
/// Of a stage of pieces [first, end). Requires: slices are of these pieces, in order, without common
/// units, not empty.
[[nodiscard]] OwnerSteps steps_of_owner(PieceTable& table, std::int64_t first, std::int64_t end,
                                        std::span<const UnitRange> slices);
/// The parameters that they read.
[[nodiscard]] NeededParameters parameters_of(PieceTable& table, const OwnerSteps& steps);

/// Elements of the gradients of norms that come of a sequence at a stage, 4 bytes each.
[[nodiscard]] std::int64_t norm_elements(PieceTable& table, std::int64_t first, std::int64_t end);

}  // namespace cleave::pieces
