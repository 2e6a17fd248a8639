// Covering a plane (rows x columns of a result, at one depth) with rectangles, one per device.
//
// Columns, and in each column rows. A device that is to be done by T takes, in a column of width c, at most
//   rows(c) = min(s - c, g / c)      s = downlink bytes / bytes of a strip
//                                    g = min(uplink bytes / bytes of a result, FLOP / (2 depth))
// rows (fewer where its memory holds neither the strips of the shorter side nor the result, or where its results would
// leave too late), which falls as c grows; so the devices of a column determine the largest width at which they fill it
// from top to bottom, and T is enough when the widths add up to the plane's. Devices are ordered by the side of the
// square that they could do, so that a column holds devices of like power and tiles come out nearly square.
#pragma once

#include <cmath>
#include <vector>

#include "device_rates.hpp"

namespace cleave::plan {

struct Tiling2D {
  std::int64_t rows = 0, columns = 0;
  double strip_bytes = 0;   ///< a row or column at the plane's depth
  double result_bytes = 0;  ///< an element of the result
  double flops = 0;         ///< of an element of the result: twice the depth
  double cell_bytes = 0;    ///< an element of the result in memory
  [[nodiscard]] double area() const { return static_cast<double>(rows) * static_cast<double>(columns); }
};

/// s and g of the file comment; `shorter` and `resident` are what memory can hold: the shorter side of a tile that
/// streams along the other, or all elements of one that streams along k. Some memory is left for panels in flight.
/// `wavefront` as DeviceRates has it.
struct Reach {
  double strips = 0, area = 0;
  double shorter = 0, resident = 0;
  double wavefront = 0;
  double quarter = 0, per_area = 0;  ///< g / 4 s^2 and 1 / g

  /// Whether the results of rows x width leave in time. With D = (r + c) / s and U = r c / g, what the tile takes of
  /// the downlink and of the slower of processor and uplink, the last leave at U + D^2 / 4U, or at D where that is 2U
  /// or more (docs/cost_model.md).
  [[nodiscard]] bool in_time(double rows, double width) const {
    const double sides = rows + width, product = rows * width;
    return sides * area >= 2 * product * strips ||
           quarter * sides * sides + product * product * per_area <= wavefront * product;
  }
  /// Rows at a width whose results leave in time: the larger root of the above. Requires: more do not.
  [[nodiscard]] double rows_in_time(double width) const {
    const double linear = wavefront - 2 * quarter, square = quarter + width * width * per_area;
    return width * (linear + std::sqrt(std::max(0.0, linear * linear - 4 * square * quarter))) / (2 * square);
  }
  /// Rows at a width.
  [[nodiscard]] double rows_at(double width) const {
    double rows = std::min(strips - width, area / width);
    if (wavefront < kBalancedWavefront && !in_time(rows, width)) rows = rows_in_time(width);
    if (width <= shorter || rows <= shorter) return rows;
    return std::min(rows, std::max(shorter, resident / width));
  }
  /// How fast these fall with the width.
  [[nodiscard]] double slope_at(double width, double rows) const {
    if (rows == strips - width) return 1;
    const double across = rows / width, limit = rows * width * per_area;
    if (limit >= 1) return across;
    const double by_width = quarter * (1 - across * across) + rows * rows * per_area;
    const double by_rows = quarter * (across - 1 / across) + limit;
    return by_rows > 0 && by_width > 0 ? by_width / by_rows : across;
  }
};
[[nodiscard]] inline Reach reach_of(const Tiling2D& plane, const Budget& budget) {
  constexpr double kStreaming = 0.95, kResident = 0.97;
  // A resident result leaves room for two blocks of the strips of its sides.
  const double cells = budget.memory / plane.cell_bytes, block = std::min(plane.flops / 2, 2.0 * kBlockK);
  const double sides = 2 * std::sqrt(cells) * plane.strip_bytes * block / (plane.flops / 2) / plane.cell_bytes;
  const double strips = budget.down / plane.strip_bytes;
  const double area = std::min(budget.up / plane.result_bytes, budget.flops / plane.flops);
  return {strips,
          area,
          kStreaming * budget.memory / plane.strip_bytes,
          kResident * std::max(0.0, cells - sides),
          budget.wavefront,
          area / (4 * strips * strips),
          1 / area};
}

/// The largest area that a device can take of a plane, whatever the shape.
[[nodiscard]] double largest_area(const Tiling2D& plane, const Reach& reach);

/// When devices would be done if shapes were free and areas only had to add up: no tiling is faster.
[[nodiscard]] double area_finish(const Tiling2D& plane, std::span<const DeviceRates> devices, double guess);

/// Which devices share which columns: positions in the span of devices, in order, and where each column begins.
struct ColumnCut {
  double finish = 0;  ///< by which every device is done, about; kNever when they cannot cover the plane
  bool transposed = false;
  std::vector<std::int32_t> order;
  struct Column {
    std::size_t first = 0, last = 0;  ///< devices [first, last) of the order
    double width = 0;
  };
  std::vector<Column> columns;
};

/// Finds columns that cover the plane early; `guess` is a time near the finish.
[[nodiscard]] ColumnCut cut_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, double guess);

/// Sets `finish` for the same columns of the same devices on a plane of another size.
void finish_cut(const Tiling2D& plane, std::span<const DeviceRates> devices, ColumnCut& cut);

/// A rectangle of the plane, and who takes it (a position in the span of devices).
struct Tile2D {
  std::int32_t device = 0;
  std::int64_t row0 = 0, row1 = 0, column0 = 0, column1 = 0;
};
struct Tiles2D {
  double finish = 0;  ///< by which every device is done; kNever when they cannot cover the plane
  std::vector<Tile2D> tiles;
};

/// What columns of some devices cover by a finish: the share of the plane, above 1 when they could cover more, and the
/// rows and columns that they are sent together, for all of it.
struct Covering {
  double share = 0, strips = 0;
};
/// `cut`, if any, becomes those columns.
[[nodiscard]] Covering cover_by_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, double finish,
                                        ColumnCut* cut = nullptr);

/// The cut in whole elements: disjoint tiles that cover the plane. Some devices may get nothing.
[[nodiscard]] Tiles2D tile_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, const ColumnCut& cut);

}  // namespace cleave::plan
