// Packing is copying: one loop where rows are neighbours in memory, one that transposes where depths are.
#include "panels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cleave/base/error.hpp"
#include "panels_avx2.hpp"
#include "panels_avx512.hpp"
#include "versions.hpp"

namespace cleave::kernels::panels {

namespace {

/// Depths that are packed together: as many lines of `from` are read side by side, each to its end.
constexpr std::int64_t kDepths = 16;

/// Copies kWidth elements. Where more may be read and written behind them, six go as eight: a load and a store instead
/// of two each.
template <int kWidth, bool kMore>
CLEAVE_INLINE void copy_width(const float* from, float* to) {
  constexpr int kCopied = kMore && kWidth == 6 ? 8 : kWidth;
  __builtin_memcpy(to, from, kCopied * sizeof(float));
}

/// Depths [t0, t1) of a panel. Of a whole panel but its last depth, what is written behind the elements is overwritten
/// by the next depth's; kMore: and there are elements of the next panel to be read.
template <int kWidth, bool kMore>
CLEAVE_INLINE void copy_depths(const float* from, std::int64_t stride, std::int64_t t0, std::int64_t t1, float* to) {
  for (std::int64_t t = t0; t + 1 < t1; ++t) copy_width<kWidth, kMore>(from + t * stride, to + t * kWidth);
  copy_width<kWidth, false>(from + (t1 - 1) * stride, to + (t1 - 1) * kWidth);
}

// Rows of whole panels are neighbours: a copy of kWidth elements for each panel and depth.
template <int kWidth>
CLEAVE_INLINE void copy_panels_of(const float* from, std::int64_t stride, std::int64_t panels, std::int64_t depth,
                                  float* to) {
  constexpr std::int64_t kLine = 16;  // floats of a cache line
  for (std::int64_t t0 = 0; t0 < depth; t0 += kDepths) {
    const std::int64_t t1 = t0 + kDepths < depth ? t0 + kDepths : depth;
    for (std::int64_t p = 0; p < panels; ++p) {
      const float* const panel = from + p * kWidth;
      if (p * kWidth % kLine < kWidth)  // a line that no panel before had a part of
        for (std::int64_t t = t0; t < t1; ++t) __builtin_prefetch(panel + (t + kDepths) * stride, 0, 2);
      if (p + 1 < panels)
        copy_depths<kWidth, true>(panel, stride, t0, t1, to + p * depth * kWidth);
      else
        copy_depths<kWidth, false>(panel, stride, t0, t1, to + p * depth * kWidth);
    }
  }
}
CLEAVE_INLINE bool copy_panels(const float* from, std::int64_t stride, std::int64_t panels, std::int64_t depth,
                               std::int64_t width, float* to) {
  switch (width) {
    case 6: copy_panels_of<6>(from, stride, panels, depth, to); return true;
    case 12: copy_panels_of<12>(from, stride, panels, depth, to); return true;
    case 16: copy_panels_of<16>(from, stride, panels, depth, to); return true;
    case 32: copy_panels_of<32>(from, stride, panels, depth, to); return true;
    default: return false;
  }
}

void pack_any(ConstMatrix from, std::int64_t rows, std::int64_t depth, std::int64_t width, float* to) {
  for (std::int64_t t0 = 0; t0 < depth; t0 += kDepths) {
    const std::int64_t t1 = std::min(depth, t0 + kDepths);
    for (std::int64_t r = 0; r < width; ++r) {
      for (std::int64_t t = t0; t < t1; ++t) to[t * width + r] = r < rows ? from(r, t) : 0.0F;
    }
  }
}

}  // namespace

void pack(ConstMatrix from, std::int64_t rows, std::int64_t depth, std::int64_t width, float* to) {
  CLEAVE_ASSERT(width > 0 && width <= kWidest, "panels of {} rows", width);
  const Instructions instructions = usable_instructions();
  std::int64_t r0 = 0;
  const std::int64_t full = rows / width;
  if (from.row_stride == 1 && dispatch<copy_panels>(from.data, from.col_stride, full, depth, width, to))
    r0 = full * width;
  for (; r0 < rows; r0 += width) {
    const std::int64_t here = std::min(width, rows - r0);
    const ConstMatrix panel = from.from(r0, 0);
    float* packed = to + r0 * depth;
    if (panel.col_stride == 1 && instructions == Instructions::avx512) {
      avx512::transpose_panel(panel.data, panel.row_stride, here, depth, width, packed);
      continue;
    }
    std::int64_t done = 0;
    if (panel.col_stride == 1 && instructions == Instructions::avx2 && here == width)
      done = avx2::transpose_whole_panel(panel.data, panel.row_stride, depth, width, packed);
    if (done < depth) pack_any(panel.from(0, done), here, depth - done, width, packed + done * width);
  }
}

}  // namespace cleave::kernels::panels
