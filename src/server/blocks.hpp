// Gathering blocks of tensors into message payloads and putting returned blocks into tensors: the server's two copies.
//
// A payload is row-major and contiguous in the wire type; a tensor is fp32 with any strides. Rounding to the wire type
// happens here, element by element, so it does not depend on how an operation is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::server {

/// Elements that one thread copies or looks at in one go: 256 KiB of fp32, enough for a thread to be worth waking, and
/// they stay in the second-level cache meanwhile.
inline constexpr std::int64_t kBandElements = 65536;
/// As many rows.
[[nodiscard]] constexpr std::int64_t rows_of_band(std::int64_t cols) {
  return std::max<std::int64_t>(1, kBandElements / std::max<std::int64_t>(1, cols));
}

/// A matrix by the lines in which it lies in memory: its rows or, where it is stored by columns, its columns.
struct Lines {
  kernels::ConstMatrix matrix;
  std::int64_t count = 0, length = 0;
  bool are_columns = false;
};
[[nodiscard]] Lines lines_of(kernels::ConstMatrix matrix, std::int64_t rows, std::int64_t cols);

/// payload[i * cols + j] = from(i, j) in type `wire`, for a block of rows x cols. Requires: payload has room for it.
void gather(kernels::Parallel& parallel, kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire,
            std::byte* payload);
/// The same on the calling thread alone.
void gather(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire, std::byte* payload);

/// to(i, j) = scale * payload[i * to.cols + j], widened exactly; or += when `accumulate`. scale: a power of two.
void scatter(kernels::Parallel& parallel, const std::byte* payload, DType type, bool accumulate, kernels::Rows to,
             float scale = 1);
/// The same on the calling thread alone.
void scatter(const std::byte* payload, DType type, bool accumulate, kernels::Rows to, float scale = 1);
void scale_rows(kernels::Rows rows, float scale);

/// The same without accumulating. False where an element is infinite or NaN; all are put in their place either way.
[[nodiscard]] bool scatter_representable(const std::byte* payload, DType type, kernels::Rows to);

/// gather, and scatter_representable, of heads that lie side by side in the matrix and one after another in the
/// message, `apart` elements from the first of one to that of the next.
void gather_heads(kernels::ConstRows from, std::int64_t heads, DType wire, std::byte* payload, std::int64_t apart);
[[nodiscard]] bool scatter_representable_heads(const std::byte* payload, std::int64_t apart, std::int64_t heads,
                                               DType type, kernels::Rows to);

}  // namespace cleave::server
