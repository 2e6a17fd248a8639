// How the server kernels cut rows into chunks: by shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/kernels/matrix.hpp"
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

/// Whether a result is so large that little of it would still be in a cache when it is read, so that it is stored past
/// the caches (lanes.hpp). Not where it replaces what it is made `of`, which is in a cache; rows must begin cache
/// lines.
inline bool passes_caches(Rows result, ConstRows of) {
  constexpr std::int64_t kLargerThanCaches = std::int64_t{8} << 20, kLine = 16;  // floats: 32 MiB, 64 B
  return result.data != nullptr && result.data != of.data && result.rows * result.cols >= kLargerThanCaches &&
         result.ld % kLine == 0 && reinterpret_cast<std::uintptr_t>(result.data) % (kLine * sizeof(float)) == 0;
}

/// Rows whose column sums are formed in fp32 before they are carried over into double.
inline constexpr std::int64_t kSumRows = 64;

}  // namespace cleave::kernels
