// How the server kernels cut rows into chunks: by shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// Rows of a chunk of an element-wise kernel: about 16 K elements, enough to outweigh handing the chunk to a thread.
inline std::int64_t rows_per_chunk(std::int64_t cols) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, cols));
}

/// Calls body(row) for every row, in chunks.
template <class Body>
void for_rows(Parallel& parallel, std::int64_t rows, std::int64_t cols, const Body& body) {
  parallel.for_chunks(rows, rows_per_chunk(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

/// Rows whose column sums are formed in fp32 before they are carried over into double.
inline constexpr std::int64_t kSumRows = 64;

}  // namespace cleave::kernels
