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

/// The pieces of a graph and their programs, by number. The graph's own pieces come first. A head can be cut into 2, 3,
/// ... parts; the parts of each of these cuts have numbers of their own, so a number names one part of one cut.
class PieceTable {
 public:
  /// `graph`: as for Program; it must outlive the table.
  explicit PieceTable(const model::StepGraph& graph);
  [[nodiscard]] const model::StepGraph& graph() const { return *graph_; }
  /// Number of pieces, with all parts of all cuts of the head.
  [[nodiscard]] std::int64_t size() const { return std::ssize(programs_); }
  /// Number of the whole head.
  [[nodiscard]] std::int64_t head() const { return std::ssize(pieces_) - 1; }
  /// Number of part k of the head in `count` parts; head() for count 1. Requires: 0 <= k < count <= vocabulary blocks
  /// of the head.
  [[nodiscard]] std::int64_t part_of_head(std::int64_t count, std::int64_t k) const;
  /// Rows of the vocabulary.
  [[nodiscard]] std::int64_t vocabulary() const { return pieces_.back().units; }
  /// Requires: 0 <= index < size().
  [[nodiscard]] const model::Piece& piece(std::int64_t index);
  /// The piece's program; built at the first call. Requires: as piece().
  [[nodiscard]] const Program& program(std::int64_t index);

 private:
  const model::StepGraph* graph_;
  std::vector<model::Piece> pieces_;
  std::map<std::int64_t, model::Piece> parts_;  // by number, made when they are first asked for
  std::vector<std::unique_ptr<Program>> programs_;
};

/// A rectangle of a parameter's gradient that one operation sums over tokens: rows and columns of the gradient's
/// tensor. A bias has one row.
struct Region {
  const model::Operation* op = nullptr;
  TensorId parameter;
  Columns rows, cols;
  [[nodiscard]] std::int64_t elements() const { return rows.count() * cols.count(); }
  /// The sum that gives the rectangle: the operation, and the columns of its operands.
  [[nodiscard]] SumInstruction sum() const;
};

/// The rectangles of gradients that slices consist of: slice by slice, tensor by tensor. Frozen tensors have none.
[[nodiscard]] std::vector<Region> regions_of(PieceTable& table, std::span<const UnitRange> slices);

/// Which part of a parameter is needed: a set of its rows, or of its columns.
struct NeededPart {
  ColumnSet lines;   ///< numbers of the rows or columns
  bool rows = true;  ///< `lines` are rows; otherwise columns
  bool operator==(const NeededPart&) const = default;
};

/// Needed parts by parameter; they are sent in the order of the ids.
using NeededParameters = std::map<TensorId, NeededPart>;

/// Bytes of these parts as they are sent (sent_as()).
[[nodiscard]] std::int64_t bytes_of(const model::StepGraph& graph, const NeededParameters& parameters);
/// The type in which a parameter is sent: weights of products in the wire type, vectors (biases, norms) in fp32.
[[nodiscard]] DType sent_as(const model::StepGraph& graph, TensorId parameter);
/// Calls use(first, count) for each contiguous run of needed elements of a parameter, in the order in which they are
/// sent. `first` counts elements of the row-major tensor.
template <class Use>
void for_needed(const model::TensorSpec& spec, const NeededPart& part, const Use& use) {
  for (const Columns& run : part.lines.runs()) {
    const std::int64_t lines = part.rows ? 1 : spec.rows;
    const std::int64_t count = part.rows ? run.count() * spec.cols : run.count();
    const std::int64_t first = part.rows ? run.begin * spec.cols : run.begin;
    for (std::int64_t line = 0; line < lines; ++line) use(line * spec.cols + first, count);
  }
}

/// The parameters that a replica of a stage of pieces [first, end) needs: all of them; of a part of the head, its rows
/// of the vocabulary and the last norm.
[[nodiscard]] NeededParameters parameters_of_stage(PieceTable& table, std::int64_t first, std::int64_t end);

/// Bytes of parameters_of_stage() as they are sent. A part of the head is also sent 2-byte norm exponents, one for each
/// column of the head's weight over the whole vocabulary.
[[nodiscard]] std::int64_t bytes_of_stage(PieceTable& table, std::int64_t first, std::int64_t end);

/// What an owner of slices computes for a sequence that its device did not run backward, from X and dY of the stage.
struct OwnerSteps {
  struct OfPiece {
    std::int64_t piece = 0;
    std::vector<Instruction> keys_values;  ///< forward pass of the highest piece: no more than keys and values
    std::vector<Instruction> forward;      ///< forward pass up to y; empty: no piece above needs y
    std::vector<Instruction> back;         ///< operands of the sums, and dx if gives_dx; empty: neither is wanted
    bool gives_dx = false;                 ///< a piece below needs dx
  };
  std::vector<OfPiece> pieces;  ///< bottom first
  std::vector<Region> regions;  ///< regions_of() the slices
};

/// The steps of an owner of `slices` of a stage of pieces [first, end). Requires: slices are of these pieces, in order,
/// without common units; at least one.
[[nodiscard]] OwnerSteps steps_of_owner(PieceTable& table, std::int64_t first, std::int64_t end,
                                        std::span<const UnitRange> slices);
/// The parameters that an owner's steps read.
[[nodiscard]] NeededParameters parameters_of(PieceTable& table, const OwnerSteps& steps);

/// Elements of the gradients of norms, in fp32, that a stage of pieces [first, end) returns for each sequence. A part
/// of the head returns none.
[[nodiscard]] std::int64_t norm_elements(PieceTable& table, std::int64_t first, std::int64_t end);

}  // namespace cleave::pieces
