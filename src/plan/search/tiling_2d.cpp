// How columns of a plane are found: by dynamic programming over the order of devices where they are few, by equal
// shares beyond; widths and heights become whole numbers last, without changing who has a tile.
#include "search/tiling_2d.hpp"

#include <algorithm>
#include <cmath>

#include "bisect.hpp"

namespace cleave::plan {

namespace {

/// Of finish times, far below what a cut is worth.
constexpr double kTilingPrecision = 1e-4;

/// Of widths that are compared; those of the cut that is taken are found again.
constexpr double kCoarse = 1e-3;

/// Up to this many devices the best columns are found by dynamic programming, beyond by equal shares: twice the usual
/// size of a group (Ways::group_size).
constexpr std::size_t kExactColumns = 48;

/// Below this many elements to a device (50 x 50, where a row is 2 %), whole numbers decide between cuts.
constexpr double kSmallTile = 2500;

__extension__ using Wide = __int128;  // a product of two counts

using Column = ColumnCut::Column;

// Columns over one plane in one orientation: what devices of an order can fill by a time.
class ColumnPartition {
 public:
  ColumnPartition(const Tiling2D& plane, bool transposed, std::span<const DeviceRates> devices)
      : plane_(plane), transposed_(transposed), devices_(devices), reach_(devices.size()) {
    if (transposed_) std::swap(plane_.rows, plane_.columns);
    rows_ = static_cast<double>(plane_.rows);
    columns_ = static_cast<double>(plane_.columns);
  }

  // Orders the devices by side at `finish`; those that cannot take one element are left out.
  void order(double finish) {
    std::vector<std::pair<double, std::int32_t>> sides;
    total_sides_ = 0;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const Reach reach = reach_of(plane_, devices_[i].by(finish));
      if (reach.area < 1 || reach.strips < 2) continue;
      const double side = std::min(reach.strips / 2, std::sqrt(reach.area));
      total_sides_ += side;
      sides.emplace_back(-side, static_cast<std::int32_t>(i));
    }
    std::sort(sides.begin(), sides.end());
    order_.clear();
    sides_.clear();
    for (const auto& [side, device] : sides) {
      order_.push_back(device);
      sides_.push_back(-side);
    }
  }
  void order(const ColumnCut& cut) {
    order_ = cut.order;
    cut_ = cut.columns;
  }

  [[nodiscard]] std::size_t usable() const { return order_.size(); }
  // How many columns of square tiles the devices make.
  [[nodiscard]] double ideal_count() const { return total_sides_ / rows_; }

  // Cuts the order into `count` columns of nearly equal sums of sides.
  void cut_evenly(std::int64_t count) {
    cut_.clear();
    double reached = 0;
    std::size_t next = 0;
    for (std::int64_t j = 0; j < count && next < order_.size(); ++j) {
      const double target = total_sides_ * static_cast<double>(j + 1) / static_cast<double>(count);
      Column column{next, next, 0};
      while (column.last < order_.size()) {
        const double side = sides_[column.last];
        if (column.last > next && j + 1 < count && reached + side / 2 > target) break;
        reached += side;
        ++column.last;
      }
      next = column.last;
      cut_.push_back(column);
    }
  }

  // Cuts the order into the columns whose widths at `finish` add up to most; returns these, as columns of the plane.
  // `quick`: columns of which areas and strips alone tell that they are not among the best are left out.
  double cut_best(double finish, bool quick = false) {
    reach_by(finish);
    const std::size_t count = order_.size();
    std::vector<double> most(count + 1, 0);
    std::vector<std::size_t> from(count + 1, 0);
    for (std::size_t last = 1; last <= count; ++last) {
      most[last] = most[last - 1];  // the last one left out
      from[last] = last;
      double sides = 0, guess = 0, areas = 0, strips = 0;
      for (std::size_t first = last; first-- > 0;) {
        sides += sides_[first];
        areas += reach_at(first).area;
        strips += reach_at(first).strips;
        if (sides < 0.5 * rows_) continue;
        if (quick) {
          guess = std::min(areas / rows_, (strips - rows_) / static_cast<double>(last - first));
          if (most[first] + guess <= most[last]) {
            if (sides > 2 * rows_) break;
            continue;
          }
        }
        const double width = width_of({first, last, 0}, guess, kCoarse);
        if (most[first] + width > most[last]) {
          most[last] = most[first] + width;
          from[last] = first;
        }
        guess = width;
        if (sides > 2 * rows_) break;
      }
    }
    cut_.clear();
    tiles_across_ = 0;
    for (std::size_t last = count; last > 0;) {
      if (from[last] == last) {
        --last;
        continue;
      }
      cut_.push_back({from[last], last, 0});
      tiles_across_ += static_cast<double>(last - from[last]) * (most[last] - most[from[last]]);
      last = from[last];
    }
    std::reverse(cut_.begin(), cut_.end());
    return most[count] / columns_;
  }

  // Rows and columns that the devices are sent, as cut best, where that covers so many times the plane.
  [[nodiscard]] double strips(double share) const {
    return static_cast<double>(cut_.size()) * rows_ + tiles_across_ / share;
  }

  // The time at which the columns, as cut, are as wide as the plane.
  double solve(double guess) {
    if (cut_.empty()) return kNever;
    return find_rise([this](double finish) { return widths_by(finish); }, columns_, kTilingPrecision, guess).high;
  }

  // The same in whole elements, from a time that is nearly enough.
  double solve_whole(double guess) {
    if (cut_.empty()) return kNever;
    const auto enough = [this](double finish) { return whole_widths_by(finish) >= plane_.columns; };
    double low = guess * (1 - 2 * kTilingPrecision), high = guess, step = kTilingPrecision;
    while (!enough(high)) {
      if (step > 1000) return kNever;
      low = high;
      high = guess * (1 + step);
      step *= 3;
    }
    while (high - low > kTilingPrecision * high) {
      const double middle = low + (high - low) / 2;
      (enough(middle) ? high : low) = middle;
    }
    return high;
  }

  [[nodiscard]] ColumnCut cut(double finish) const { return {finish, transposed_, order_, cut_}; }

  // Requires: `finish` was found by solve_whole().
  void place(double finish, std::vector<Tile2D>& tiles) {
    std::int64_t excess = whole_widths_by(finish) - plane_.columns, start = 0;
    double left = 0;
    for (const Column& column : cut_) left += column.width;
    for (const Column& column : cut_) {
      // Every column gives up its share of the excess, in whole elements.
      const auto width = static_cast<std::int64_t>(column.width);
      const double share = left > 0 ? static_cast<double>(excess) * column.width / left : 0;
      const auto less = std::min(width, static_cast<std::int64_t>(std::ceil(share - 1e-9)));
      left -= column.width;
      excess -= less;
      if (width > less) {
        place_rows(column, start, width - less, tiles);
        start += width - less;
      }
    }
  }

 private:
  void reach_by(double finish) {
    for (const std::int32_t device : order_) {
      const auto i = static_cast<std::size_t>(device);
      reach_[i] = reach_of(plane_, devices_[i].by(finish));
    }
  }
  [[nodiscard]] const Reach& reach_at(std::size_t position) const {
    return reach_[static_cast<std::size_t>(order_[position])];
  }

  // The largest width at which the column's devices fill all rows: Newton's method on a falling function, kept inside
  // a bracket; 0 when that is less than half an element. `guess` may be 0.
  [[nodiscard]] double width_of(const Column& column, double guess, double precision = 1e-6) const {
    double low = 0, high = 0;
    for (std::size_t i = column.first; i < column.last; ++i) high = std::max(high, reach_at(i).strips);
    bool open = high >= columns_;
    high = std::min(high, columns_);
    double width = guess > 0 && guess < high ? guess : high;
    for (int step = 0; step < 50; ++step) {
      double rows = 0, slope = 0;
      for (std::size_t i = column.first; i < column.last; ++i) {
        const Reach& reach = reach_at(i);
        if (reach.strips <= width) continue;
        const double most = reach.rows_at(width);
        rows += most;
        slope += reach.slope_at(width, most);
      }
      if (rows >= rows_) {
        if (width == columns_) return width;
        low = width;
      } else {
        high = width;
        open = false;
      }
      if (open && low > 0 && high - low <= precision * high) return high;  // as wide as the plane
      if (std::abs(rows - rows_) <= precision * rows_ || high - low <= precision * high) break;
      if (high < 0.5) return 0;
      width += slope > 0 ? (rows - rows_) / slope : 0;
      if (open && width >= high) {
        width = high;  // the plane's own width, not tried yet
      } else if (!(width > low && width < high)) {
        width = low > 0 ? low + (high - low) / 2 : high / 2;
      }
    }
    return width;
  }

  [[nodiscard]] std::int64_t whole_rows(std::size_t position, double width) const {
    const Reach& reach = reach_at(position);
    const double rows = reach.rows_at(width) * (1 + 1e-12);
    return rows >= 1 ? static_cast<std::int64_t>(std::min(rows, rows_)) : 0;
  }

  [[nodiscard]] bool fills_whole(const Column& column, double width) const {
    std::int64_t rows = 0;
    for (std::size_t i = column.first; i < column.last; ++i) {
      rows += whole_rows(i, width);
      if (rows >= plane_.rows) return true;
    }
    return false;
  }

  double widths_by(double finish) {
    reach_by(finish);
    double total = 0;
    for (Column& column : cut_) total += column.width = width_of(column, column.width);
    return total;
  }

  std::int64_t whole_widths_by(double finish) {
    reach_by(finish);
    std::int64_t total = 0;
    for (Column& column : cut_) {
      column.width = whole_width_of(column);
      total += static_cast<std::int64_t>(column.width);
    }
    return total;
  }

  [[nodiscard]] double whole_width_of(const Column& column) const {
    double low = 0, high = columns_ + 1;  // fills at low, does not at high
    // Near the width in real numbers, which is never less.
    double width = std::floor(width_of(column, column.width) * (1 + 1e-9));
    if (width < 1) return 0;
    high = std::min(high, width + 1);
    for (double step = 1; width >= 1 && !fills_whole(column, width); step *= 2) {
      high = width;
      width = std::max(width - step, 0.0);
    }
    low = width;
    while (high - low > 1) {
      const double middle = std::floor((low + high) / 2);
      (fills_whole(column, middle) ? low : high) = middle;
    }
    return low;
  }

  void place_rows(const Column& column, std::int64_t start, std::int64_t width, std::vector<Tile2D>& tiles) const {
    const auto w = static_cast<double>(width);
    std::int64_t total = 0;
    for (std::size_t i = column.first; i < column.last; ++i) total += whole_rows(i, w);
    std::int64_t row = 0, seen = 0;
    for (std::size_t i = column.first; i < column.last; ++i) {
      seen += whole_rows(i, w);
      // Everyone gives up the same share of the excess; rounding down the running sum keeps each within its rows.
      const auto stop = static_cast<std::int64_t>(Wide(plane_.rows) * seen / total);
      if (stop > row) {
        const std::int32_t device = order_[i];
        tiles.push_back(transposed_ ? Tile2D{device, start, start + width, row, stop}
                                    : Tile2D{device, row, stop, start, start + width});
      }
      row = std::max(row, stop);
    }
  }

  Tiling2D plane_;
  bool transposed_;
  double rows_ = 0, columns_ = 0;
  std::span<const DeviceRates> devices_;
  std::vector<Reach> reach_;
  std::vector<std::int32_t> order_;
  std::vector<double> sides_;  // in the same order
  double total_sides_ = 0;
  std::vector<Column> cut_;
  double tiles_across_ = 0;  // widths of all tiles of the best cut together
};

bool small_tiles(const Tiling2D& plane, std::size_t devices) {
  return plane.area() < kSmallTile * static_cast<double>(devices);
}

// The best cut among those whose devices are ordered as they stand at `start`.
ColumnCut cut_from(const Tiling2D& plane, std::span<const DeviceRates> devices, double start) {
  ColumnCut best{kNever, false, {}, {}};
  const bool small = small_tiles(plane, devices.size());
  for (const bool transposed : {false, true}) {
    ColumnPartition columns(plane, transposed, devices);
    columns.order(start);
    if (columns.usable() == 0) continue;
    const auto judge = [&] {
      const double finish = small ? columns.solve_whole(start) : columns.solve(start * 1.01);
      if (finish < best.finish) best = columns.cut(finish);
    };
    if (columns.usable() <= kExactColumns) {
      static_cast<void>(columns.cut_best(start * 1.01));
      judge();
      if (!small) continue;
    }
    const auto most = static_cast<double>(
        std::min<std::int64_t>(transposed ? plane.rows : plane.columns, static_cast<std::int64_t>(columns.usable())));
    const double ideal = std::clamp(columns.ideal_count(), 1.0, most);
    const auto low = static_cast<std::int64_t>(ideal);
    for (std::int64_t count = low; count <= low + 1 && static_cast<double>(count) <= most; ++count) {
      columns.cut_evenly(count);
      judge();
    }
  }
  return best;
}

}  // namespace

double largest_area(const Tiling2D& plane, const Reach& reach) {
  const auto rows = static_cast<double>(plane.rows), columns = static_cast<double>(plane.columns);
  const double longer = std::max(rows, columns), side = std::min({reach.strips / 2, rows, columns});
  double free = std::min(side * std::min(reach.strips - side, longer), reach.area);
  if (const double shortest = std::min({std::sqrt(free), rows, columns});
      free > 0 && reach.wavefront < kBalancedWavefront && !reach.in_time(free / shortest, shortest)) {
    // Of a square, D^2 / 4U does not depend on its size.
    const double square = (reach.wavefront - 4 * reach.quarter) * reach.area;
    free = std::sqrt(square) <= shortest ? square : shortest * reach.rows_in_time(shortest);
  }
  if (side <= reach.shorter) return std::max(0.0, free);
  const double streamed = reach.shorter * std::min(reach.strips - reach.shorter, longer);
  return std::max(0.0, std::min(free, std::max(streamed, reach.resident)));
}

double area_finish(const Tiling2D& plane, std::span<const DeviceRates> devices, double guess) {
  const auto areas = [&](double finish) {
    double total = 0;
    for (const DeviceRates& device : devices) total += largest_area(plane, reach_of(plane, device.by(finish)));
    return total;
  };
  return find_rise(areas, plane.area(), kTilingPrecision, guess).high;
}

ColumnCut cut_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, double guess) {
  // Where a device's share is less than an element, areas say too little: go on until some can take one.
  for (double start = area_finish(plane, devices, guess); start < kLatest; start *= 1.5) {
    ColumnCut cut = cut_from(plane, devices, start);
    if (cut.finish != kNever) return cut;
  }
  return {kNever, false, {}, {}};
}

Covering cover_by_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, double finish, ColumnCut* cut) {
  Covering best;
  for (const bool transposed : {false, true}) {
    ColumnPartition columns(plane, transposed, devices);
    columns.order(finish);
    const double share = columns.cut_best(finish, true);
    if (share <= best.share) continue;
    best = {share, columns.strips(share)};
    if (cut != nullptr) *cut = columns.cut(finish);
  }
  return best;
}

void finish_cut(const Tiling2D& plane, std::span<const DeviceRates> devices, ColumnCut& cut) {
  ColumnPartition columns(plane, cut.transposed, devices);
  columns.order(cut);
  cut = columns.cut(small_tiles(plane, devices.size()) ? columns.solve_whole(cut.finish) : columns.solve(cut.finish));
}

Tiles2D tile_columns(const Tiling2D& plane, std::span<const DeviceRates> devices, const ColumnCut& cut) {
  Tiles2D tiling{kNever, {}};
  if (cut.finish == kNever) return tiling;
  ColumnPartition columns(plane, cut.transposed, devices);
  columns.order(cut);
  tiling.finish = columns.solve_whole(cut.finish);
  if (tiling.finish != kNever) columns.place(tiling.finish, tiling.tiles);
  return tiling;
}

}  // namespace cleave::plan
