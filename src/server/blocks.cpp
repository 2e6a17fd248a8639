// The two copies. Transposed operands are read in square blocks that fit the first-level cache.
#include "blocks.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "cleave/kernels/copy.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::server {

namespace {

constexpr std::int64_t kSquare = 32;

// to[i * cols + j] = from(i, j) where neighbours in a column of `from` are neighbours in memory.
void transpose(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, float* to) {
  for (std::int64_t i0 = 0; i0 < rows; i0 += kSquare) {
    const std::int64_t i1 = std::min(rows, i0 + kSquare);
    for (std::int64_t j0 = 0; j0 < cols; j0 += kSquare) {
      const std::int64_t j1 = std::min(cols, j0 + kSquare);
      std::array<float, kSquare * kSquare> square;
      for (std::int64_t j = j0; j < j1; ++j) {
        for (std::int64_t i = i0; i < i1; ++i)
          square[static_cast<std::size_t>((i - i0) * kSquare + (j - j0))] = from(i, j);
      }
      for (std::int64_t i = i0; i < i1; ++i) {
        std::memcpy(to + i * cols + j0, square.data() + (i - i0) * kSquare,
                    static_cast<std::size_t>(j1 - j0) * sizeof(float));
      }
    }
  }
}

}  // namespace

void gather(kernels::Parallel& parallel, kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire,
            std::byte* payload) {
  parallel.for_chunks(rows, rows_of_band(cols), [&](std::int64_t begin, std::int64_t end) {
    gather(from.from(begin, 0), end - begin, cols, wire, payload + begin * cols * size_of(wire));
  });
}

void scale_rows(kernels::Rows rows, float scale) {
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t j = 0; j < rows.cols; ++j) rows.row(i)[j] *= scale;
  }
}

void scatter(kernels::Parallel& parallel, const std::byte* payload, DType type, bool accumulate, kernels::Rows to,
             float scale) {
  parallel.for_chunks(to.rows, rows_of_band(to.cols), [&](std::int64_t begin, std::int64_t end) {
    scatter(payload + begin * to.cols * size_of(type), type, accumulate, to.band(begin, end), scale);
  });
}

void gather(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire, std::byte* payload) {
  const bool rows_contiguous = from.col_stride == 1;
  if (wire == DType::f32) {
    auto* to = reinterpret_cast<float*>(payload);
    if (!rows_contiguous) return transpose(from, rows, cols, to);
    return kernels::copy_past_caches(kernels::ConstRows(from.data, rows, cols, from.row_stride), to);
  }
  auto* to = reinterpret_cast<std::uint16_t*>(payload);
  if (rows_contiguous) {
    kernels::narrow(wire, kernels::ConstRows(from.data, rows, cols, from.row_stride), to, cols);
    return;
  }
  // Transposed in bands of rows, so that the fp32 copy stays in cache.
  const std::int64_t band = rows_of_band(cols);
  std::vector<float> buffer(static_cast<std::size_t>(std::min(band, rows) * cols));
  for (std::int64_t i = 0; i < rows; i += band) {
    const std::int64_t count = std::min(band, rows - i);
    transpose(from.from(i, 0), count, cols, buffer.data());
    kernels::narrow(wire, kernels::ConstRows(buffer.data(), count, cols), to + i * cols, cols);
  }
}

void scatter(const std::byte* payload, DType type, bool accumulate, kernels::Rows to, float scale) {
  if (type != DType::f32 && !accumulate) {
    kernels::widen(type, reinterpret_cast<const std::uint16_t*>(payload), to.cols, to);
    if (scale != 1) scale_rows(to, scale);
    return;
  }
  std::vector<float> widened;
  const auto* from = reinterpret_cast<const float*>(payload);
  if (type != DType::f32) {
    widened.resize(static_cast<std::size_t>(to.rows * to.cols));
    kernels::widen(type, reinterpret_cast<const std::uint16_t*>(payload), to.cols,
                   kernels::Rows(widened.data(), to.rows, to.cols));
    from = widened.data();
  }
  if (!accumulate) return kernels::copy_rows(from, to);
  for (std::int64_t i = 0; i < to.rows; ++i) {
    for (std::int64_t j = 0; j < to.cols; ++j) to.row(i)[j] += scale * from[i * to.cols + j];
  }
}

Lines lines_of(kernels::ConstMatrix matrix, std::int64_t rows, std::int64_t cols) {
  if (matrix.col_stride == 1) return {matrix, rows, cols, false};
  return {matrix.transposed(), cols, rows, true};
}

bool scatter_representable(const std::byte* payload, DType type, kernels::Rows to) {
  if (type == DType::f32) return kernels::copy_finite_rows(reinterpret_cast<const float*>(payload), to);
  const bool good = kernels::all_representable(type, payload, to.rows * to.cols);
  scatter(payload, type, false, to);
  return good;
}

void gather_heads(kernels::ConstRows from, std::int64_t heads, DType wire, std::byte* payload, std::int64_t apart) {
  const std::int64_t cols = from.cols / heads;
  for (std::int64_t h = 0; h < heads; ++h) {
    const kernels::ConstRows head = from.columns(h * cols, (h + 1) * cols);
    gather({head.data, head.ld}, head.rows, cols, wire, payload + h * apart * size_of(wire));
  }
}

bool scatter_representable_heads(const std::byte* payload, std::int64_t apart, std::int64_t heads, DType type,
                                 kernels::Rows to) {
  const std::int64_t cols = to.cols / heads;
  bool good = true;
  for (std::int64_t h = 0; h < heads; ++h)
    good &= scatter_representable(payload + h * apart * size_of(type), type, to.columns(h * cols, (h + 1) * cols));
  return good;
}

}  // namespace cleave::server
