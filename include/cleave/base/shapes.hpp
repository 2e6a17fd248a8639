// Shapes that plan, wire, kernels and server share: the box of a GEMM, a run of attention pairs, element types.
//
// BLAS letters everywhere: C[m x n] = op(A)[m x k] * op(B)[k x n]. Ranges are half-open. K is cut at multiples of
// kBlockK only (docs/numerics.md says why), so a box covers whole K blocks or ends at k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace cleave {

/// Depth of one K block: a multiple of the depth of one call of every BLIS kernel (Haswell 256, Skylake-X 384,
/// Cortex-A57 512). The longer, the fewer results are rounded to integers and added up, each of which costs an element
/// the time of 50 to 100 multiplications; the shorter, the finer k can be cut.
inline constexpr std::int64_t kBlockK = 1536;

/// Rows of a sequence that are computed together: a query block of attention, and the rows of which a bias's or a
/// norm's gradient is formed in floating point. Results depend on it, so chunks of a sequence begin at its multiples
/// (docs/numerics.md).
inline constexpr std::int64_t kRowBlock = 128;

/// Columns of the vocabulary whose maximum and sum of exponentials are found together, and between which a head may be
/// cut (docs/numerics.md, "The head in parts"): a K block, so that no partial sum of dX is cut either.
inline constexpr std::int64_t kVocabularyBlock = kBlockK;
/// Number of vocabulary blocks that so many columns have, a short last one included.
constexpr std::int64_t vocabulary_blocks(std::int64_t columns) {
  return (columns + kVocabularyBlock - 1) / kVocabularyBlock;
}

/// Types that elements have on the wire, in files and in partial sums. mxint8: rows between stages alone (row_bytes()).
enum class DType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, f64 = 3, i32 = 4, i64 = 5, u16 = 6, mxint8 = 7 };

/// Bytes of an element. 0 for mxint8, whose elements share scales: row_bytes().
constexpr std::int64_t size_of(DType type) {
  switch (type) {
    case DType::bf16:
    case DType::f16:
    case DType::u16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f64:
    case DType::i64: return 8;
    case DType::mxint8: return 0;
  }
  return 0;
}

/// Elements of a row that share a scale in mxint8.
inline constexpr std::int64_t kMxBlock = 32;

/// Bytes of a row of so many elements. mxint8: one an element, one a block of kMxBlock elements, and up to a multiple
/// of four. Example: 5120 elements take 5280 bytes, 8.25 bits each.
constexpr std::int64_t row_bytes(DType type, std::int64_t columns) {
  if (type != DType::mxint8) return columns * size_of(type);
  return (columns + (columns + kMxBlock - 1) / kMxBlock + 3) / 4 * 4;
}

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u16: return "u16";
    case DType::mxint8: return "mxint8";
  }
  return "?";
}

/// Element type of a partial sum (a run of some, not all, K blocks) when operands travel as `wire`:
/// 64-bit scaled integers for fp32, 32-bit for the 16-bit types (docs/numerics.md).
constexpr DType partial_sum_type(DType wire) { return wire == DType::f32 ? DType::i64 : DType::i32; }

/// Sizes of a matrix product C[m x n] = A[m x k] B[k x n].
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  constexpr bool operator==(const GemmShape&) const = default;
};

/// Number of K blocks that a depth of k has; at least one.
constexpr std::int64_t k_blocks(std::int64_t k) { return std::max<std::int64_t>(1, (k + kBlockK - 1) / kBlockK); }

/// A box of a GEMM: rows [m0,m1) of op(A), columns [n0,n1) of op(B), depth [k0,k1) in elements.
struct GemmBox {
  std::int64_t m0 = 0, m1 = 0, n0 = 0, n1 = 0, k0 = 0, k1 = 0;
  constexpr bool operator==(const GemmBox&) const = default;
  [[nodiscard]] constexpr std::int64_t m() const { return m1 - m0; }
  [[nodiscard]] constexpr std::int64_t n() const { return n1 - n0; }
  [[nodiscard]] constexpr std::int64_t k() const { return k1 - k0; }
};

/// Attention over `pairs()` = batch * n_kv_head pairs. A pair (sequence b, key/value head h) has index
/// b * n_kv_head + h and carries its n_head / n_kv_head query heads, so that dK and dV are complete on one device.
struct AttentionShape {
  std::int64_t batch = 0, seq = 0, n_head = 0, n_kv_head = 0, head_dim = 0;
  constexpr bool operator==(const AttentionShape&) const = default;
  [[nodiscard]] constexpr std::int64_t pairs() const { return batch * n_kv_head; }
  [[nodiscard]] constexpr std::int64_t queries_per_pair() const { return n_head / n_kv_head; }
};

/// A run of attention pairs [pair0, pair1).
struct PairRange {
  std::int64_t pair0 = 0, pair1 = 0;
  constexpr bool operator==(const PairRange&) const = default;
  [[nodiscard]] constexpr std::int64_t count() const { return pair1 - pair0; }
};

}  // namespace cleave
