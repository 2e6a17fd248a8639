// Costs of a run of pieces, from the pieces' own figures.
#include "cleave/plan/stage_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cleave/base/error.hpp"

namespace cleave::plan {

namespace {

// Norm exponent of a column of the head's weight over the whole vocabulary, which parts of the head need.
constexpr std::int64_t kExponentBytes = 2;

// The share of a piece's units that slices hold.
double share_of(const model::Piece& piece, std::int64_t index, std::span<const PieceSlice> slices) {
  double share = 0;
  for (const PieceSlice& slice : slices) {
    if (slice.piece == index) share += static_cast<double>(slice.end - slice.begin) / static_cast<double>(piece.units);
  }
  return share;
}

// The share of a piece's key/value heads that slices touch. Attention is computed for whole heads.
double heads_touched(const model::Piece& piece, std::int64_t index, std::span<const PieceSlice> slices) {
  if (piece.kind != model::PieceKind::attention) return 0;
  const std::int64_t width = std::max<std::int64_t>(1, piece.attention.head_dim);
  std::int64_t heads = 0, made = 0;
  for (const PieceSlice& slice : slices) {
    if (slice.piece != index) continue;
    const std::int64_t end = (slice.end + width - 1) / width;
    heads += std::max<std::int64_t>(0, end - std::max(made, slice.begin / width));
    made = std::max(made, end);
  }
  return static_cast<double>(heads) / static_cast<double>(std::max<std::int64_t>(1, piece.attention.n_kv_head));
}

// Bytes of the weights packed for the products of forward and backward pass: in panels of whole columns, and with the
// elements beyond them that a kernel may fetch.
Bytes packed_bytes(const model::Piece& piece) {
  constexpr std::int64_t kPanel = 64, kBeyond = 1024, kElement = 4;
  const auto in_panels = [](std::int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; };
  std::int64_t elements = 0;
  for (const model::SlicedTensor& tensor : piece.tensors) {
    if (tensor.vector) continue;
    elements += in_panels(tensor.extent) * tensor.width + in_panels(tensor.width) * tensor.extent + 2 * kBeyond;
  }
  return Bytes(kElement * elements);
}

std::int64_t units_of(std::span<const PieceSlice> slices) {
  std::int64_t sum = 0;
  for (const PieceSlice& slice : slices) sum += slice.end - slice.begin;
  return sum;
}

double trained_elements(const model::Piece& piece) {
  double sum = 0;
  for (const model::SlicedTensor& tensor : piece.tensors)
    sum += tensor.trained ? static_cast<double>(tensor.elements()) : 0;
  return sum;
}

// The row (or column) of a tensor with which unit `unit` of its piece begins.
std::int64_t place_of(const model::SlicedTensor& tensor, std::int64_t unit, std::int64_t units) {
  return tensor.begin + unit * tensor.extent / units;
}

}  // namespace

StageWork stage_work_of(const model::StepGraph& graph, DType wire) {
  StageWork work{.pieces = model::pieces_of(graph),
                 .in_tiles = {},
                 .batch = graph.batch,
                 .seq = graph.seq,
                 .wire = wire,
                 .boundary = graph.boundary == DType::mxint8 ? DType::mxint8 : wire};
  const std::vector<std::int64_t> places = model::pieces_of_operations(graph);
  std::vector<TiledPiece> tiled(work.pieces.size());
  for (const model::Operation& op : graph.operations) {
    const std::int64_t place = places[static_cast<std::size_t>(op.id.value)];
    if (place < 0 || place >= std::ssize(tiled)) continue;
    TiledPiece& piece = tiled[static_cast<std::size_t>(place)];
    (op.phase == model::Phase::forward ? piece.forward : piece.back).push_back(op);
  }
  work.trains_embeddings = std::ranges::any_of(
      graph.operations, [](const model::Operation& op) { return op.kind == model::OpKind::embed_backward; });
  work.in_tiles = std::make_shared<const std::vector<TiledPiece>>(std::move(tiled));
  return work;
}

std::vector<const model::Operation*> operations_in_tiles(const StageWork& work, std::int64_t first, std::int64_t end,
                                                         bool back) {
  CLEAVE_ASSERT(work.in_tiles != nullptr && end <= std::ssize(*work.in_tiles), "no operations of pieces {} to {}",
                first, end);
  std::vector<const model::Operation*> all;
  for (std::int64_t k = 0; k < end - first; ++k) {
    const TiledPiece& piece = (*work.in_tiles)[static_cast<std::size_t>(back ? end - 1 - k : first + k)];
    for (const model::Operation& op : back ? piece.back : piece.forward) all.push_back(&op);
  }
  return all;
}

StageWork with_head_parts(const StageWork& work, std::int64_t parts) {
  StageWork cut = work;
  if (parts == 1 || work.pieces.empty() || work.pieces.back().part.count == parts) return cut;
  const model::Piece head = cut.pieces.back();
  cut.pieces.pop_back();
  std::ranges::copy(model::head_parts(head, parts), std::back_inserter(cut.pieces));
  return cut;
}

StageCost::StageCost(const StageWork& work, std::int64_t first, std::int64_t end, std::int64_t chunk)
    : pieces_(&work.pieces), first_(first), end_(end), wire_(size_of(work.wire)) {
  double keys_values = 0, row_elements = 0;
  std::int64_t weights = 0, kept = 0;
  for (std::int64_t i = first; i < end; ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    weights += piece.weight_elements() * wire_ + piece.vector_elements() * 4;
    packed_ += packed_bytes(piece);
    keys_values += static_cast<double>(piece.key_value_columns());
    row_elements = std::max(row_elements, (piece.kind == model::PieceKind::head ? 1.0 : 2.0) * piece.row_elements);
    gradient_elements_ += trained_elements(piece);
    kept += piece.kept_elements;
    head_ = head_ || (piece.kind == model::PieceKind::head && !piece.is_part());
    if (piece.is_part()) blocks_ = piece.part.blocks;
    backward_ = backward_ || piece.backward;
    if (piece.backward && !piece.is_part()) norm_elements_ += piece.norm_elements;
  }
  width_ = work.pieces[static_cast<std::size_t>(first)].width;
  row_ = row_bytes(work.boundary, width_);
  sum_ = sum_bytes(work.wire);
  weights_ = Bytes(weights + (is_part() ? kExponentBytes * width_ : 0));
  const auto seq = static_cast<double>(work.seq);
  const auto bytes = [](double value) { return Bytes(static_cast<std::int64_t>(value)); };
  open_forward_ = bytes(seq * keys_values * static_cast<double>(wire_));
  if (!head_) {
    open_backward_ = bytes(seq * static_cast<double>((end - first) * width_ * wire_) +
                           seq * keys_values * static_cast<double>(wire_ + 4));
  }
  kept_ = bytes(seq * (4.0 * static_cast<double>(kept) + keys_values * static_cast<double>(wire_ + 4)));
  const auto rows = static_cast<double>(std::min(chunk, work.seq));
  at_work_ = bytes(rows * (row_elements * 4 + 4.0 * static_cast<double>(width_ * wire_)));
  if (is_part()) at_work_ += backward_result(std::min(chunk, work.seq));
}

Bytes StageCost::least_replica() const { return weights_ + at_work_ + (open_forward_ + open_backward_) * kLeastOpen; }

Flops StageCost::forward(std::int64_t t0, std::int64_t t1) const {
  double sum = 0;
  for (std::int64_t i = first_; i < end_; ++i) {
    const model::Piece& piece = (*pieces_)[static_cast<std::size_t>(i)];
    sum +=
        piece.forward * static_cast<double>(t1 - t0) + piece.attention_flops(t0, t1, model::kAttentionForward).value();
    if (head_ && backward_) sum += piece.input_gradient * static_cast<double>(t1 - t0);
  }
  return Flops(sum);
}

Flops StageCost::recompute(std::int64_t t0, std::int64_t t1) const {
  double sum = 0;
  for (std::int64_t i = first_; i < end_; ++i) {
    const model::Piece& piece = (*pieces_)[static_cast<std::size_t>(i)];
    const bool last = i + 1 == end_;
    if (piece.is_part()) continue;  // its X comes again, and its norm is recomputed chunk by chunk
    sum += (last ? piece.keys_values : piece.forward) * static_cast<double>(t1 - t0);
    if (!last) sum += piece.attention_flops(t0, t1, model::kAttentionForward).value();
  }
  return Flops(sum);
}

Flops StageCost::backward(std::int64_t t0, std::int64_t t1) const {
  double sum = 0;
  for (std::int64_t i = first_; i < end_; ++i) {
    const model::Piece& piece = (*pieces_)[static_cast<std::size_t>(i)];
    sum += (piece.forward + piece.input_gradient - piece.keys_values) * static_cast<double>(t1 - t0) +
           piece.attention_flops(t0, t1, model::kAttentionForward + model::kAttentionBackward).value();
  }
  return Flops(sum);
}

Flops StageCost::backward_of_kept(std::int64_t t0, std::int64_t t1) const {
  double sum = 0;
  for (std::int64_t i = first_; i < end_; ++i) {
    const model::Piece& piece = (*pieces_)[static_cast<std::size_t>(i)];
    sum += piece.input_gradient * static_cast<double>(t1 - t0) +
           piece.attention_flops(t0, t1, model::kAttentionBackward).value();
  }
  return Flops(sum);
}

namespace {

// Columns of the operands that the sums of a slice read. Products that read the same operand share it: products that
// are cut by columns share their input, those that are cut by rows their output gradient. Example: all of an MLP half
// reads X and the hidden gradient, hidden values and dY, 2 (width + hidden columns) columns.
double columns_read(const model::Piece& piece, const PieceSlice& slice) {
  const double share = static_cast<double>(slice.end - slice.begin) / static_cast<double>(piece.units);
  double cut = 0;
  std::int64_t whole[2] = {0, 0};
  for (const model::SlicedTensor& tensor : piece.tensors) {
    if (tensor.vector || !tensor.trained) continue;
    cut += share * static_cast<double>(tensor.extent);
    whole[tensor.cut_rows ? 1 : 0] = std::max(whole[tensor.cut_rows ? 1 : 0], tensor.width);
  }
  return cut + static_cast<double>(whole[0] + whole[1]);
}

}  // namespace

OwnerCost owner_cost(const StageWork& work, const StageCost& stage, std::span<const PieceSlice> slices,
                     std::int64_t chunk) {
  OwnerCost cost;
  if (slices.empty()) return cost;
  const auto seq = static_cast<double>(work.seq);
  const std::int64_t lowest = slices.front().piece, highest = slices.back().piece;
  const bool whole_stage = stage.end() - stage.first() > 1;
  double alone = 0, beside = 0, weights = 0;
  for (std::int64_t i = stage.first(); i < stage.end(); ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    const double share = share_of(piece, i, slices), heads = heads_touched(piece, i, slices);
    // Pieces below the highest slice run forward, to give its X; pieces above the lowest slice run backward, to give
    // its dY.
    const bool whole_forward = i < highest || (i > highest && highest + 1 < stage.end());
    const bool whole_backward = i > lowest;
    const double forward = whole_forward || whole_backward ? 1 : share, backward = whole_backward ? 1 : share;
    const double attention_share = whole_forward || whole_backward ? 1 : heads;
    alone += seq * (piece.forward * forward + piece.input_gradient * backward) +
             attention_share * piece.attention_flops(0, work.seq, model::kAttentionForward).value() +
             (whole_backward ? 1 : heads) * piece.attention_flops(0, work.seq, model::kAttentionBackward).value();
    alone += seq * piece.weight_gradient * share;
    beside += seq * piece.weight_gradient * share;
    cost.elements += trained_elements(piece) * share;
    // In the highest slice's piece only the slice's weights are needed, unless pieces above need the whole Y of the
    // piece.
    const bool whole = whole_forward || whole_backward || (i == highest && highest + 1 < stage.end());
    // Attention is computed for whole heads, even if only a part of one is owned.
    weights += (whole ? 1 : std::max(share, heads)) *
               static_cast<double>(piece.weight_elements() * size_of(work.wire) + piece.vector_elements() * 4);
  }
  cost.weights = Bytes(static_cast<std::int64_t>(std::ceil(weights)));
  cost.alone = Flops(alone);
  cost.beside = Flops(beside);
  // X and dY; at the head X, with each row's maximum, sum and target, from which the gradient of its logits is made.
  cost.operands =
      stage.has_logits() ? stage.boundary(work.seq) + Bytes(kHeadRowBack * work.seq) : stage.boundary(2 * work.seq);
  const bool keeps_sequence = whole_stage || stage.open_forward().value() > 0;
  cost.at_work = keeps_sequence ? stage.open_backward() + stage.boundary(2 * work.seq) : stage.boundary(4 * chunk);
  double columns = 0;
  for (const PieceSlice& slice : slices)
    columns += columns_read(work.pieces[static_cast<std::size_t>(slice.piece)], slice);
  if (stage.is_head()) cost.side_by_side = kLeastOpen;
  if (!stage.is_part())
    cost.held = Bytes(static_cast<std::int64_t>(std::ceil(seq * columns * static_cast<double>(size_of(work.wire)))));
  if (stage.is_part()) cost.kept = Bytes(2 * work.seq * (units_of(slices) + stage.width()) * size_of(work.wire));
  return cost;
}

std::pair<Bytes, Bytes> slot_bytes(const StageCost& stage, Bytes held) {
  return {stage.open_forward() + (stage.is_head() ? held : Bytes(0)),
          stage.open_backward() + (stage.is_part() ? held : Bytes(0))};
}

std::vector<PieceSlice> slices_between(const StageWork& work, const StageCost& stage, double from, double to) {
  std::vector<PieceSlice> slices;
  double before = 0;
  for (std::int64_t i = stage.first(); i < stage.end(); ++i) {
    const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
    const double elements = trained_elements(piece), units = static_cast<double>(piece.units);
    if (elements > 0) {
      const auto unit_at = [&](double share) {
        const double place = (share * stage.gradient_elements() - before) / elements;
        return static_cast<std::int64_t>(std::llround(std::clamp(place, 0.0, 1.0) * units));
      };
      const std::int64_t begin = unit_at(from), end = unit_at(to);
      if (end > begin) slices.push_back({i, begin, end});
    }
    before += elements;
  }
  return slices;
}

std::vector<TensorSlice> tensor_slices(const model::Piece& piece, const PieceSlice& slice) {
  std::vector<TensorSlice> slices;
  for (const model::SlicedTensor& tensor : piece.tensors) {
    if (!tensor.trained) continue;
    const std::int64_t begin = place_of(tensor, slice.begin, piece.units),
                       end = place_of(tensor, slice.end, piece.units);
    if (end > begin) slices.push_back({tensor.tensor, begin * tensor.width, end * tensor.width, tensor.cut_rows});
  }
  return slices;
}

}  // namespace cleave::plan
