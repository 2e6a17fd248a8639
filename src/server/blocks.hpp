// Gathering blocks of tensors into message payloads and putting returned blocks into tensors: the server's two copies.
//
// A payload is row-major and contiguous in the wire type; a tensor is fp32 with any strides. Rounding to the wire type
// happens here, element by element, so it does not depend on how an operation is cut.
#pragma once

#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/matrix.hpp"

namespace cleave::server {

/// payload[i * cols + j] = from(i, j) in type `wire`, for a block of rows x cols. Requires: payload has room for it.
void gather(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire, std::byte* payload);

/// to(i, j) = payload[i * to.cols + j], widened exactly; or += when `accumulate`.
void scatter(const std::byte* payload, DType type, bool accumulate, kernels::Rows to);

/// The columns of one head group of one sequence: rows of `seq` tokens, columns of `heads` heads from `head` on.
struct HeadBlock {
  std::int64_t sequence = 0, head = 0;
};

/// The view of one head of one sequence: seq x head_dim. `all` has one row per token, heads side by side.
[[nodiscard]] inline kernels::Rows head_view(kernels::Rows all, std::int64_t seq, std::int64_t head_dim,
                                             HeadBlock block) {
  return {all.row(block.sequence * seq) + block.head * head_dim, seq, head_dim, all.ld};
}

}  // namespace cleave::server
