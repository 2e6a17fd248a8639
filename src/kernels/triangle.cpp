// One loop over micro-tiles; the three products differ in the columns and the depths that a panel of rows needs.
#include "triangle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "micro_kernel.hpp"
#include "panels.hpp"

namespace cleave::kernels::triangle {

namespace {

std::int64_t width_of(Side side) {
  const MicroKernel& kernel = MicroKernel::selected();
  return (side == Side::rows) == kernel.by_rows ? kernel.mr : kernel.nr;
}

/// What a panel of rows needs: columns [0, columns) and depths [begin, end).
struct Needed {
  std::int64_t columns, begin, end;
};

/// A micro-tile of C over depths [begin, end).
void multiply_tile(const MicroKernel& kernel, const Factor& a, std::int64_t i, const Factor& b, std::int64_t j,
                   std::int64_t begin, std::int64_t end, Matrix c, bool accumulate) {
  const std::int64_t rows = std::min(a.width(), a.size() - i), columns = std::min(b.width(), b.size() - j);
  const std::int64_t next = j + b.width() < b.size() ? j + b.width() : 0;
  for (std::int64_t t = begin, stop = 0; t < end; t = stop) {
    stop = std::min(end, (t / kernel.kc + 1) * kernel.kc);
    const bool add = accumulate || t > begin;
    const float *left = a.at(i, t), *right = b.at(j, t);
    if (kernel.by_rows) {
      kernel(rows, columns, stop - t, left, right, add, &c(i, j), c.row_stride, 1, left, b.at(next, t));
    } else {
      kernel(columns, rows, stop - t, right, left, add, &c(i, j), 1, c.row_stride, b.at(next, t), left);
    }
  }
}

/// needed(i0, i1) of the rows of a panel.
template <class Rule>
void multiply(const Factor& a, const Factor& b, Matrix c, bool accumulate, const Rule& needed) {
  CLEAVE_ASSERT(a.depth() == b.depth() && c.col_stride == 1, "depths {} and {}", a.depth(), b.depth());
  const MicroKernel& kernel = MicroKernel::selected();
  for (std::int64_t i = 0; i < a.size(); i += a.width()) {
    const Needed part = needed(i, std::min(a.size(), i + a.width()));
    for (std::int64_t j = 0; j < part.columns; j += b.width())
      multiply_tile(kernel, a, i, b, j, part.begin, part.end, c, accumulate);
  }
}

}  // namespace

Factor::Factor(Side side) : width_(width_of(side)) {}

float* Factor::enough(std::int64_t n, std::int64_t depth) {
  n_ = n;
  depth_ = depth;
  const auto bytes = static_cast<std::size_t>(panels::size(n, depth, width_) + kBeyond) * sizeof(float);
  if (memory_.capacity() < bytes) {
    memory_ = Block();
    memory_ = Block(bytes);
  }
  return reinterpret_cast<float*>(memory_.data());
}

const float* Factor::at(std::int64_t i, std::int64_t t) const {
  return reinterpret_cast<const float*>(memory_.data()) + i * depth_ + t * width_;
}

void Factor::pack(ConstMatrix from, std::int64_t n, std::int64_t depth) {
  panels::pack(from, n, depth, width_, enough(n, depth));
}

void Factor::pack_below(ConstMatrix from, std::int64_t n, std::int64_t depth, std::int64_t first) {
  float* const to = enough(n, depth);
  for (std::int64_t i = 0; i < n; i += width_) {
    const std::int64_t rows = std::min(width_, n - i);
    panels::pack(from.from(i, 0), rows, std::min(depth, first + i + rows), width_, to + i * depth);
  }
}

void multiply_below(const Factor& a, const Factor& b, std::int64_t first, Matrix c) {
  multiply(a, b, c, false, [&](std::int64_t, std::int64_t i1) {
    return Needed{std::min(b.size(), first + i1), 0, a.depth()};
  });
}

void multiply_lower(const Factor& a, const Factor& b, std::int64_t first, Matrix c) {
  multiply(a, b, c, false, [&](std::int64_t, std::int64_t i1) {
    return Needed{b.size(), 0, std::min(a.depth(), first + i1)};
  });
}

void add_upper(const Factor& a, const Factor& b, std::int64_t first, Matrix c) {
  CLEAVE_ASSERT(a.depth() <= MicroKernel::selected().kc, "depth {}", a.depth());
  multiply(a, b, c, true, [&](std::int64_t i0, std::int64_t) {
    return Needed{b.size(), std::clamp<std::int64_t>(i0 - first, 0, a.depth()), a.depth()};
  });
}

}  // namespace cleave::kernels::triangle
