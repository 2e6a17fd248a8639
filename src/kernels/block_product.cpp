// Loops around the micro-kernel. It computes micro-tiles of mr x nr with one of the two stored fastest; where that is
// not how C lies, the transposed product C' = B' A' is computed instead, which takes the same additions in the same
// order.
#include "block_product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/error.hpp"
#include "micro_kernel.hpp"
#include "panels.hpp"

namespace cleave::kernels {

namespace {

/// Memory of the calling thread, kept from call to call.
class Buffer {
 public:
  float* enough(std::int64_t floats) {
    const auto bytes = static_cast<std::size_t>(floats + kBeyond) * sizeof(float);
    if (block_.capacity() < bytes) {
      block_ = Block();
      block_ = Block(std::max(bytes, kSmallestInHugePages));  // the micro-kernel walks through many pages
    }
    return reinterpret_cast<float*>(block_.data());
  }

 private:
  Block block_;
};

struct Buffers {
  Buffer left, right, band;
};
Buffers& buffers() {
  thread_local Buffers memory;
  return memory;
}

/// What the micro-kernel sees: L R' over `depth`, both operands by rows. The result has left rows x right rows.
struct Oriented {
  ConstMatrix left, right;
  std::int64_t m, n, depth;
  bool swapped;  // left is the columns of C, right its rows
};

Oriented orient(GemmShape shape, ConstMatrix a, ConstMatrix b, bool by_rows) {
  if (by_rows) return {a, b.transposed(), shape.m, shape.n, shape.k, false};
  return {b.transposed(), a, shape.n, shape.m, shape.k, true};
}

ResultBand band_of(const Oriented& p, std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1) {
  return p.swapped ? ResultBand{n0, n1, m0, m1} : ResultBand{m0, m1, n0, n1};
}

/// Length of equal parts of n, each of whole units but the last and of at most `largest` elements or one unit: a small
/// remainder would pass the other operand for little.
std::int64_t equal_part(std::int64_t n, std::int64_t largest, std::int64_t unit) {
  const std::int64_t units = (n + unit - 1) / unit, most = std::max<std::int64_t>(1, largest / unit);
  const std::int64_t parts = (units + most - 1) / most;
  return (units + parts - 1) / parts * unit;
}

void nothing_to_add(GemmShape shape, Matrix c, BandUse use, Accumulate accumulate) {
  for (std::int64_t i = 0; i < shape.m; ++i) {
    float* row = c.data != nullptr ? &c(i, 0) : buffers().band.enough(shape.n);
    if (accumulate == Accumulate::no) std::fill_n(row, shape.n, 0.0F);
    use({i, i + 1, 0, shape.n, row, shape.n});
  }
}

/// An operand that is wanted next, fetched into the second-level cache a few lines at a time between calls of the
/// micro-kernel: these leave memory idle, and its first pass would have to wait for it.
class Ahead {
 public:
  Ahead() = default;
  /// All of it in the course of so many calls.
  Ahead(const float* first, std::int64_t floats, std::int64_t calls)
      : next_(first), end_(first + floats), at_once_((floats / calls / kLine + 1) * kLine) {}

  void fetch() {
    const float* const stop = next_ + std::min<std::int64_t>(at_once_, end_ - next_);
    for (; next_ < stop; next_ += kLine) __builtin_prefetch(next_, 0, 2);
  }

 private:
  static constexpr std::int64_t kLine = 16;  // floats of a cache line

  const float *next_ = nullptr, *end_ = nullptr;
  std::int64_t at_once_ = 0;
};

/// One band: left panels [m0, m1) past the right panel of columns [n0, n1). A run of kc depths of the right panel
/// stays in the first-level cache while all left panels pass.
void multiply_band(const MicroKernel& kernel, const Oriented& p, const ResultBand& band, const float* left,
                   std::int64_t m0, std::int64_t m1, const float* right, std::int64_t n0, std::int64_t n1,
                   bool accumulate, Ahead& ahead) {
  const std::int64_t row_stride = p.swapped ? 1 : band.ld, col_stride = p.swapped ? band.ld : 1;
  for (std::int64_t t = 0; t < p.depth; t += kernel.kc) {
    const std::int64_t depth = std::min(kernel.kc, p.depth - t);
    for (std::int64_t i = m0; i < m1; i += kernel.mr) {
      const float* panel = left + (i - m0) * p.depth + t * kernel.mr;
      const float* next = i + kernel.mr < m1 ? panel + kernel.mr * p.depth : left;
      kernel(std::min(kernel.mr, m1 - i), n1 - n0, depth, panel, right + t * kernel.nr, t > 0 || accumulate,
             band.data + (i - m0) * row_stride, row_stride, col_stride, next, right + t * kernel.nr);
      ahead.fetch();
    }
  }
}

}  // namespace

void multiply_block(GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c, BandUse use, Accumulate accumulate,
                    const float* packed_b) {
  CLEAVE_ASSERT(shape.k <= kBlockK && shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "block of {} x {} x {}", shape.m,
                shape.n, shape.k);
  CLEAVE_ASSERT(c.data == nullptr || c.col_stride == 1, "columns of C are {} apart", c.col_stride);
  CLEAVE_ASSERT(c.data != nullptr || accumulate == Accumulate::no, "nothing to accumulate in");
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) return nothing_to_add(shape, c, use, accumulate);
  const MicroKernel& kernel = MicroKernel::selected();
  const Oriented p = orient(shape, a, b, kernel.by_rows);
  const std::int64_t mc = equal_part(p.m, kernel.mc_kc / p.depth, kernel.mr);
  const std::int64_t nc = equal_part(p.n, kernel.nc_kc / p.depth, kernel.nr);
  // A right panel that passes the left operand once is packed when its turn comes, into the place of the one before,
  // which is in the first-level cache. Not where rows are neighbours: memory gives whole rows faster than parts.
  const bool one_by_one = mc >= p.m && p.right.col_stride == 1;
  const float* const packed_left = p.swapped ? packed_b : nullptr;
  const float* const packed_right = p.swapped ? nullptr : packed_b;
  Buffers& memory = buffers();
  for (std::int64_t n0 = 0; n0 < p.n; n0 += nc) {
    const std::int64_t n1 = std::min(p.n, n0 + nc), packed_together = one_by_one ? kernel.nr : n1 - n0;
    float* const right =
        packed_right != nullptr ? nullptr : memory.right.enough(panels::size(packed_together, p.depth, kernel.nr));
    for (std::int64_t m0 = 0; m0 < p.m; m0 += mc) {
      const std::int64_t m1 = std::min(p.m, m0 + mc);
      const float* left = packed_left != nullptr ? packed_left + m0 * p.depth : nullptr;
      if (left == nullptr) {
        float* const to = memory.left.enough(panels::size(m1 - m0, p.depth, kernel.mr));
        panels::pack(p.left.from(m0, 0), m1 - m0, p.depth, kernel.mr, to);
        left = to;
      }
      Ahead ahead;
      if (packed_left != nullptr && m1 < p.m)
        ahead = {
            packed_left + m1 * p.depth, (std::min(p.m, m1 + mc) - m1) * p.depth,
            panels::count(m1 - m0, kernel.mr) * panels::count(n1 - n0, kernel.nr) * panels::count(p.depth, kernel.kc)};
      for (std::int64_t n = n0; n < n1; n += kernel.nr) {
        const std::int64_t n_end = std::min(n1, n + kernel.nr), place = (n - n0) % packed_together;
        if (packed_right == nullptr && m0 == 0 && place == 0)
          panels::pack(p.right.from(n, 0), std::min(packed_together, n1 - n), p.depth, kernel.nr, right);
        ResultBand band = band_of(p, m0, m1, n, n_end);
        band.data = c.data != nullptr ? &c(band.i0, band.j0) : memory.band.enough(std::min(mc, p.m) * kernel.nr);
        band.ld = c.data != nullptr ? c.row_stride : band.cols();
        const float* const panel = packed_right != nullptr ? packed_right + n * p.depth : right + place * p.depth;
        multiply_band(kernel, p, band, left, m0, m1, panel, n, n_end, accumulate == Accumulate::yes, ahead);
        use(band);
      }
    }
  }
}

}  // namespace cleave::kernels
