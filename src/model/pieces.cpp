// Sorts the operations of a graph into pieces: forward ones by their order, backward ones by what they read.
#include "cleave/model/pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "cleave/base/error.hpp"

namespace cleave::model {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Sorter {
 public:
  explicit Sorter(const StepGraph& graph)
      : graph_(graph), piece_of_tensor_(graph.tensors.size(), kNone), places_(graph.operations.size(), -1) {}

  /// Of each operation, once sorted.
  [[nodiscard]] const std::vector<std::int64_t>& places() const { return places_; }

  std::vector<Piece> sort() {
    sort_forward();
    if (pieces_.empty() || pieces_.back().kind != PieceKind::head) return {};
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (!stands_alone(i)) return {};
    }
    sort_backward();
    const double rows = static_cast<double>(graph_.batch * graph_.seq);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      Piece& piece = pieces_[i];
      for (double* flops :
           {&piece.forward, &piece.norm_forward, &piece.keys_values, &piece.input_gradient, &piece.weight_gradient})
        *flops /= rows;
      slice_tensors(i);
    }
    find_kept();
    return std::move(pieces_);
  }

 private:
  static bool is_parameter(const TensorSpec& spec) { return spec.role == TensorRole::parameter; }
  const TensorSpec& spec(const TensorView& view) const { return graph_.tensor(view.tensor); }
  std::size_t& piece_of(TensorId tensor) { return piece_of_tensor_[static_cast<std::size_t>(tensor.value)]; }

  // A residual sum ends a piece; what follows the last one is the head.
  void sort_forward() {
    forward_.emplace_back();
    for (const Operation& op : graph_.operations) {
      if (op.phase != Phase::forward || op.kind == OpKind::embed) continue;
      forward_.back().push_back(&op);
      places_[static_cast<std::size_t>(op.id.value)] = std::ssize(forward_) - 1;
      if (op.kind == OpKind::add) forward_.emplace_back();
    }
    std::int64_t layer = -1;
    for (std::size_t i = 0; i < forward_.size(); ++i) {
      Piece piece;
      for (const Operation* op : forward_[i]) {
        if (op->kind == OpKind::attention_forward) {
          piece.kind = PieceKind::attention;
          piece.attention = op->attention;
        }
        if (op->kind == OpKind::cross_entropy || op->kind == OpKind::cross_entropy_loss) piece.kind = PieceKind::head;
      }
      if (piece.kind != PieceKind::mlp) ++layer;
      piece.layer = layer;
      enter(i, piece);
      pieces_.push_back(std::move(piece));
    }
  }

  void enter(std::size_t index, Piece& piece) {
    std::unordered_map<std::int64_t, std::int64_t> columns;
    for (const Operation* op : forward_[index]) {
      for (const TensorView& view : op->in) {
        if (is_parameter(spec(view))) piece_of(view.tensor) = index;
        if (piece.width == 0 && spec(view).role == TensorRole::activation) piece.width = view.cols;
      }
      for (const TensorView& view : op->out) {
        if (!view.valid() || spec(view).role != TensorRole::activation) continue;
        piece_of(view.tensor) = index;
        columns[view.tensor.value] = spec(view).cols;
      }
      if (op->kind != OpKind::attention_forward) piece.forward += flops_of(*op).value();
      if (op->kind == OpKind::layer_norm || op->kind == OpKind::rms_norm) piece.norm_forward += flops_of(*op).value();
      if (op->kind == OpKind::gemm) piece.keys_values += keys_values_of(index, *op);
    }
    for (const auto& [tensor, cols] : columns) piece.row_elements += static_cast<double>(cols);
  }

  const Operation* attention_of(std::size_t index) const {
    const auto found = std::ranges::find(forward_[index], OpKind::attention_forward, &Operation::kind);
    return found == forward_[index].end() ? nullptr : *found;
  }

  // Whether a device that has only the piece can compute it: it norms the residual stream below it and reads nothing
  // else from outside, and no other norm follows. A layer whose two branches read the same rows has no such halves.
  bool stands_alone(std::size_t index) const {
    const std::vector<const Operation*>& operations = forward_[index];
    const auto is_norm = [](const Operation* op) {
      return op->kind == OpKind::layer_norm || op->kind == OpKind::rms_norm;
    };
    if (!is_norm(operations.front()) || std::ranges::count_if(operations, is_norm) != 1) return false;
    const TensorId x = operations.front()->in[0].tensor;
    if (x != (index == 0 ? embedded() : forward_[index - 1].back()->out[0].tensor)) return false;
    const auto comes_in = [&](const TensorView& view) {
      return spec(view).role == TensorRole::activation && view.tensor != x &&
             piece_of_tensor_[static_cast<std::size_t>(view.tensor.value)] != index;
    };
    if (std::ranges::any_of(operations, [&](const Operation* op) { return std::ranges::any_of(op->in, comes_in); }))
      return false;
    if (pieces_[index].kind == PieceKind::head) return true;
    const std::vector<TensorView>& summed = operations.back()->in;
    return std::ranges::find(summed, x, &TensorView::tensor) != summed.end() &&
           has_units(operations, attention_of(index));
  }

  // Whether slices can cut all products of a half at once: each multiplies the normed rows, and gives what attention
  // reads or else hidden columns; but for the last, which sums over what attention gives, or over hidden columns.
  static bool has_units(const std::vector<const Operation*>& operations, const Operation* attention) {
    const TensorId normed = operations.front()->out[0].tensor;
    std::vector<const Operation*> products;
    std::ranges::copy_if(operations, std::back_inserter(products),
                         [](const Operation* op) { return op->kind == OpKind::gemm; });
    if (products.size() < 2) return false;
    const Operation* const last = products.back();
    products.pop_back();
    if (attention != nullptr && last->in[0].tensor != attention->out[0].tensor) return false;
    return std::ranges::all_of(products, [&](const Operation* op) {
      if (op->in[0].tensor != normed) return false;
      if (attention == nullptr) return op->gemm.n == last->gemm.k;
      return std::ranges::find(attention->in, op->out[0].tensor, &TensorView::tensor) != attention->in.end();
    });
  }

  // The residual stream below the first piece.
  TensorId embedded() const {
    const auto embed = std::ranges::find(graph_.operations, OpKind::embed, &Operation::kind);
    return embed == graph_.operations.end() ? TensorId() : embed->out[0].tensor;
  }

  // FLOP of the columns of a product that attention reads as keys or values.
  double keys_values_of(std::size_t index, const Operation& product) const {
    const Operation* const attention = attention_of(index);
    if (attention == nullptr) return 0;
    double columns = 0;
    for (std::size_t i = 1; i < 3; ++i) {
      if (attention->in[i].tensor == product.out[0].tensor) columns += static_cast<double>(attention->in[i].cols);
    }
    return flops_of(product).value() * columns / static_cast<double>(product.gemm.n);
  }

  // A backward operation belongs where its parameter does, else where its forward values were made, else where the
  // operation before it belongs: sums and rotations of gradients follow what they take part in.
  void sort_backward() {
    std::size_t last = pieces_.size() - 1;
    for (const Operation& op : graph_.operations) {
      const bool backward = op.phase == Phase::input_gradient || op.phase == Phase::weight_gradient;
      if (!backward || op.kind == OpKind::embed_backward || op.kind == OpKind::zero) continue;
      last = place_of(op, last);
      places_[static_cast<std::size_t>(op.id.value)] = static_cast<std::int64_t>(last);
      Piece& piece = pieces_[last];
      piece.backward = true;
      if (op.kind == OpKind::attention_backward) continue;
      (op.phase == Phase::weight_gradient ? piece.weight_gradient : piece.input_gradient) += flops_of(op).value();
    }
  }

  void find_kept() {
    std::vector<bool> made_forward(graph_.tensors.size(), false);
    for (const Operation& op : graph_.operations) {
      for (const TensorView& out : op.out) {
        if (op.phase == Phase::forward && out.valid()) made_forward[static_cast<std::size_t>(out.tensor.value)] = true;
      }
    }
    for (const Operation& op : graph_.operations) {
      const std::int64_t place = places_[static_cast<std::size_t>(op.id.value)];
      const bool sums = op.phase == Phase::weight_gradient;
      if (place < 0 || (!sums && op.phase != Phase::input_gradient)) continue;
      Piece& piece = pieces_[static_cast<std::size_t>(place)];
      for (const TensorView& view : op.in) {
        if (spec(view).role != TensorRole::activation) continue;
        if (!sums && !made_forward[static_cast<std::size_t>(view.tensor.value)]) continue;
        if (std::ranges::find(piece.kept, view.tensor) != piece.kept.end()) continue;
        piece.kept.push_back(view.tensor);
        piece.kept_elements += spec(view).cols;
      }
    }
  }

  std::size_t place_of(const Operation& op, std::size_t otherwise) {
    std::size_t by_value = kNone;
    for (const auto* views : {&op.in, &op.out}) {
      for (const TensorView& view : *views) {
        if (!view.valid()) continue;
        const TensorSpec& tensor = spec(view);
        const TensorId parameter = tensor.role == TensorRole::gradient ? tensor.parameter : tensor.id;
        const std::size_t place = piece_of(parameter);
        if (place == kNone) continue;
        if (is_parameter(graph_.tensor(parameter))) return place;
        if (by_value == kNone || place > by_value) by_value = place;
      }
    }
    return by_value == kNone ? otherwise : by_value;
  }

  [[nodiscard]] bool trained(TensorId parameter) const {
    return std::ranges::any_of(graph_.tensors, [&](const TensorSpec& tensor) {
      return tensor.role == TensorRole::gradient && tensor.parameter == parameter;
    });
  }

  // Products are cut along their outputs; the last one before a residual sum along its inputs, so that a unit is one
  // hidden column, or one column of K with the columns of Q, V and the projection that belong to it.
  void slice_tensors(std::size_t index) {
    Piece& piece = pieces_[index];
    const std::vector<const Operation*>& operations = forward_[index];
    const Operation* const attention = attention_of(index);
    const Operation* last_product = nullptr;
    if (piece.kind != PieceKind::head) {
      for (const Operation* op : operations) {
        if (op->kind == OpKind::gemm) last_product = op;
      }
    }
    for (const Operation* op : operations) {
      if (op->kind == OpKind::gemm) {
        const TensorView& weight = op->in[1];
        if (seen(piece, weight.tensor)) continue;  // the head's, chunk by chunk
        const bool by_outputs = op != last_product;
        SlicedTensor sliced{.tensor = weight.tensor, .cut_rows = by_outputs == op->trans_b};
        sliced.trained = trained(weight.tensor);
        sliced.extent = sliced.cut_rows ? weight.rows : weight.cols;
        sliced.width = sliced.cut_rows ? weight.cols : weight.rows;
        add_parts(piece, sliced, by_outputs ? attention : nullptr, op->out[0].tensor);
        if (piece.units == 0 || piece.kind == PieceKind::head) piece.units = by_outputs ? op->gemm.n : op->gemm.k;
      } else if (op->kind == OpKind::add_bias) {
        const TensorView& bias = op->in[0];
        SlicedTensor sliced{.tensor = bias.tensor, .extent = bias.cols, .vector = true};
        sliced.trained = trained(bias.tensor);
        const bool of_last = last_product != nullptr && op->out[0].tensor == last_product->out[0].tensor;
        add_parts(piece, sliced, of_last ? nullptr : attention, op->out[0].tensor);
      } else if (op->kind == OpKind::layer_norm || op->kind == OpKind::rms_norm) {
        for (std::size_t i = 1; i < op->in.size(); ++i) {
          piece.norms.push_back(op->in[i].tensor);
          piece.norm_elements += op->in[i].cols;
        }
      }
    }
    if (attention != nullptr) piece.units = attention->in[1].cols;
  }

  static bool seen(const Piece& piece, TensorId tensor) {
    return std::ranges::any_of(piece.tensors, [&](const SlicedTensor& known) { return known.tensor == tensor; });
  }

  // Of a product whose outputs are Q, K and V side by side, each is a part of its own.
  static void add_parts(Piece& piece, const SlicedTensor& whole, const Operation* attention, TensorId output) {
    std::vector<SlicedTensor> parts;
    for (std::size_t i = 0; attention != nullptr && i < 3; ++i) {
      if (attention->in[i].tensor != output) continue;
      SlicedTensor part = whole;
      part.begin = attention->in[i].col0;
      part.extent = attention->in[i].cols;
      parts.push_back(part);
    }
    if (parts.empty()) parts.push_back(whole);
    piece.tensors.insert(piece.tensors.end(), parts.begin(), parts.end());
  }

  const StepGraph& graph_;
  std::vector<std::size_t> piece_of_tensor_;
  std::vector<std::int64_t> places_;                    // of operations
  std::vector<std::vector<const Operation*>> forward_;  // of each piece
  std::vector<Piece> pieces_;
};

}  // namespace

std::string Piece::name() const {
  if (kind == PieceKind::head) return is_part() ? fmt::format("head.{}", part.index) : "head";
  return fmt::format("h.{}.{}", layer, kind == PieceKind::attention ? "attn" : "mlp");
}

std::int64_t Piece::weight_elements() const {
  std::int64_t sum = 0;
  for (const SlicedTensor& tensor : tensors) sum += tensor.vector ? 0 : tensor.elements();
  return sum;
}

std::int64_t Piece::vector_elements() const {
  std::int64_t sum = norm_elements;
  for (const SlicedTensor& tensor : tensors) sum += tensor.vector ? tensor.elements() : 0;
  return sum;
}

std::int64_t Piece::key_value_columns() const { return 2 * attention.n_kv_head * attention.head_dim; }

Flops Piece::attention_flops(std::int64_t t0, std::int64_t t1, double products) const {
  return head_flops(attention.head_dim, t0, t1, products) * static_cast<double>(attention.n_head);
}

namespace {

void require_one_group(const StepGraph& graph) {
  const bool grouped = std::ranges::any_of(graph.operations, [](const Operation& op) { return op.rows.count > 1; });
  CLEAVE_ASSERT(!grouped, "pieces are cut from a graph whose rows are one group");
}

}  // namespace

std::vector<Piece> pieces_of(const StepGraph& graph) {
  require_one_group(graph);
  return Sorter(graph).sort();
}

std::vector<Piece> head_parts(const Piece& head, std::int64_t count) {
  const std::int64_t blocks = vocabulary_blocks(head.units);
  CLEAVE_ASSERT(head.kind == PieceKind::head && !head.is_part() && head.norm_elements > 0 && count <= blocks,
                "a head of {} blocks cannot be cut into {} parts", blocks, count);
  std::vector<Piece> parts;
  for (std::int64_t k = 0; k < count; ++k) {
    const std::int64_t first = blocks * k / count, end = blocks * (k + 1) / count;
    const std::int64_t from = first * kVocabularyBlock, to = std::min(head.units, end * kVocabularyBlock);
    const double share = static_cast<double>(to - from) / static_cast<double>(head.units);
    Piece part = head;
    part.part = {k, count, end - first, from};
    part.units = to - from;
    for (SlicedTensor& tensor : part.tensors) {
      const std::int64_t begin = from * tensor.extent / head.units, past = to * tensor.extent / head.units;
      tensor.begin += begin;
      tensor.extent = past - begin;
    }
    // Every part norms its rows itself.
    const auto width = static_cast<double>(head.width);
    part.forward = head.norm_forward + (head.forward - head.norm_forward) * share;
    part.input_gradient *= share;
    part.weight_gradient *= share;
    part.row_elements = width + std::max(0.0, head.row_elements - width) * share;
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<std::int64_t> pieces_of_operations(const StepGraph& graph) {
  require_one_group(graph);
  Sorter sorter(graph);
  (void)sorter.sort();
  return sorter.places();
}

}  // namespace cleave::model
