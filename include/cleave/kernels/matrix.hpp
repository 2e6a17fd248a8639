// Views of fp32 matrices that kernels read and write; they own nothing.
//
// Two kinds: a strided view for operands of products, whose storage may be transposed, and row views for everything
// that works along rows. Indices and strides are counted in elements.
#pragma once

#include <cstdint>
#include <type_traits>

namespace cleave::kernels {

/// Element (i,j) lies at data[i * row_stride + j * col_stride].
template <class T>
struct StridedView {
  T* data = nullptr;
  std::int64_t row_stride = 0, col_stride = 1;

  constexpr StridedView() = default;
  constexpr StridedView(T* first, std::int64_t rows_apart, std::int64_t cols_apart = 1)
      : data(first), row_stride(rows_apart), col_stride(cols_apart) {}
  /// A writable view is a readable one.
  template <class U>
  requires std::is_same_v<const U, T>
  constexpr StridedView(const StridedView<U>& other)
      : data(other.data), row_stride(other.row_stride), col_stride(other.col_stride) {}

  [[nodiscard]] constexpr T& operator()(std::int64_t i, std::int64_t j) const {
    return data[i * row_stride + j * col_stride];
  }
  [[nodiscard]] constexpr StridedView transposed() const { return {data, col_stride, row_stride}; }
  /// The view whose element (0,0) is this one's (i,j).
  [[nodiscard]] constexpr StridedView from(std::int64_t i, std::int64_t j) const {
    return {data + i * row_stride + j * col_stride, row_stride, col_stride};
  }
};

using ConstMatrix = StridedView<const float>;
using Matrix = StridedView<float>;

/// `rows` rows of `cols` neighbouring elements; row i begins at data + i * ld, ld >= cols.
template <class T>
struct RowView {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0, ld = 0;

  constexpr RowView() = default;
  constexpr RowView(T* first, std::int64_t row_count, std::int64_t col_count)
      : RowView(first, row_count, col_count, col_count) {}
  constexpr RowView(T* first, std::int64_t row_count, std::int64_t col_count, std::int64_t rows_apart)
      : data(first), rows(row_count), cols(col_count), ld(rows_apart) {}
  template <class U>
  requires std::is_same_v<const U, T>
  constexpr RowView(const RowView<U>& other) : data(other.data), rows(other.rows), cols(other.cols), ld(other.ld) {}

  [[nodiscard]] constexpr T* row(std::int64_t i) const { return data + i * ld; }
  /// Rows [begin, end).
  [[nodiscard]] constexpr RowView band(std::int64_t begin, std::int64_t end) const {
    return {row(begin), end - begin, cols, ld};
  }
  /// Columns [begin, end) of every row.
  [[nodiscard]] constexpr RowView columns(std::int64_t begin, std::int64_t end) const {
    return {data + begin, rows, end - begin, ld};
  }
};

using ConstRows = RowView<const float>;
using Rows = RowView<float>;

}  // namespace cleave::kernels
