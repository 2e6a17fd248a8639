// Two-dimensional tiling of a box at its whole depth: columns, and in each column rows.
//
// For a finish time T a device in a column of width c takes at most
//   rows(c) = min(down/strip - c, up/(c * result), flops/(2 c depth))
// rows, which falls as c grows. Devices are ordered by the side of the square that they could do, and cut into columns
// of nearly equal sums of sides, so that tiles come out nearly square; a column is as wide as its devices can fill
// from top to bottom. T is feasible when the widths add up to n. Tiles are integral and legal by construction.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bisect.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"

namespace cleave::plan {

namespace {

struct Plane {
  std::int64_t rows = 0, columns = 0;
  double strip_bytes = 0, result_bytes = 0, flops = 0;  // per row or column; per element of the result
};

struct Column {
  std::size_t first = 0, last = 0;  // devices [first, last) of the order
  std::int64_t width = 0;
};

std::int64_t rows_within(const Plane& plane, const Budget& budget, std::int64_t width) {
  const double c = static_cast<double>(width);
  const double rows = std::min({budget.down_bytes / plane.strip_bytes - c, budget.up_bytes / (c * plane.result_bytes),
                                budget.flops / (c * plane.flops)});
  return rows >= 1 ? static_cast<std::int64_t>(std::min(rows, static_cast<double>(plane.rows))) : 0;
}

double side_of(const Plane& plane, const Budget& budget) {
  if (!budget.any()) return 0;
  const double strip = budget.down_bytes / plane.strip_bytes / 2;
  return std::min({strip, std::sqrt(budget.up_bytes / plane.result_bytes), std::sqrt(budget.flops / plane.flops)});
}

class Tiling {
 public:
  Tiling(const Plane& plane, std::span<const DeviceState> devices, const fleet::ServerProfile& server)
      : plane_(plane), devices_(devices), server_(server), budgets_(devices.size()), sides_(devices.size()) {}

  // Finds columns that are done by `finish`; false when there are none.
  bool attempt(double finish) {
    order_.clear();
    double sum = 0;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      budgets_[i] = budget_of(devices_[i], server_, Seconds(finish));
      sides_[i] = side_of(plane_, budgets_[i]);
      if (sides_[i] * sides_[i] < 0.25) continue;
      sum += sides_[i];
      order_.push_back(i);
    }
    if (order_.empty()) return false;
    std::sort(order_.begin(), order_.end(),
              [this](std::size_t a, std::size_t b) { return sides_[a] != sides_[b] ? sides_[a] > sides_[b] : a < b; });
    const auto most = static_cast<double>(std::min<std::int64_t>(plane_.columns, std::ssize(order_)));
    const double ideal = std::clamp(sum / static_cast<double>(plane_.rows), 1.0, most);
    const auto low = static_cast<std::int64_t>(ideal);
    for (std::int64_t count = low; count <= std::min(low + 1, static_cast<std::int64_t>(most)); ++count) {
      if (fill(count, sum)) return true;
    }
    return false;
  }

  // Requires: the last attempt succeeded. Calls place(device, m0, m1, n0, n1) for each tile.
  template <class Place>
  void place_tiles(const Place& place) {
    std::int64_t excess = -plane_.columns, n = 0;
    for (const Column& column : columns_) excess += column.width;
    for (std::size_t j = 0; j < columns_.size(); ++j) {
      const auto left = static_cast<std::int64_t>(columns_.size() - j);
      const std::int64_t less = std::min(columns_[j].width, (excess + left - 1) / left);
      excess -= less;
      const std::int64_t width = columns_[j].width - less;
      if (width == 0) continue;
      place_rows(columns_[j], n, width, place);
      n += width;
    }
  }

 private:
  bool fill(std::int64_t count, double sum) {
    columns_.clear();
    std::int64_t total = 0;
    std::size_t next = 0;
    double reached = 0;
    for (std::int64_t j = 0; j < count && next < order_.size(); ++j) {
      const double target = sum * static_cast<double>(j + 1) / static_cast<double>(count);
      Column column{next, next, 0};
      while (column.last < order_.size() &&
             (column.last == next || reached + sides_[order_[column.last]] / 2 <= target || j + 1 == count)) {
        reached += sides_[order_[column.last++]];
      }
      next = column.last;
      column.width = widest(column);
      total += column.width;
      columns_.push_back(column);
    }
    return total >= plane_.columns;
  }

  // The largest width at which the column's devices fill all rows.
  std::int64_t widest(const Column& column) const {
    std::int64_t low = 0, high = plane_.columns + 1;
    while (high - low > 1) {
      const std::int64_t width = low + (high - low) / 2;
      std::int64_t rows = 0;
      for (std::size_t i = column.first; i < column.last && rows < plane_.rows; ++i) {
        rows += rows_within(plane_, budgets_[order_[i]], width);
      }
      (rows >= plane_.rows ? low : high) = width;
    }
    return low;
  }

  template <class Place>
  void place_rows(const Column& column, std::int64_t n, std::int64_t width, const Place& place) const {
    std::int64_t total = 0;
    for (std::size_t i = column.first; i < column.last; ++i) total += rows_within(plane_, budgets_[order_[i]], width);
    std::int64_t m = 0, seen = 0;
    for (std::size_t i = column.first; i < column.last; ++i) {
      seen += rows_within(plane_, budgets_[order_[i]], width);
      // Everyone gives up the same share of the excess; rounding down the running sum keeps each within its rows.
      const auto end = static_cast<std::int64_t>(static_cast<double>(plane_.rows) * static_cast<double>(seen) /
                                                 static_cast<double>(total));
      const std::int64_t stop = i + 1 == column.last ? plane_.rows : end;
      if (stop > m) place(order_[i], m, stop, n, n + width);
      m = std::max(m, stop);
    }
  }

  Plane plane_;
  std::span<const DeviceState> devices_;
  fleet::ServerProfile server_;
  std::vector<Budget> budgets_;
  std::vector<double> sides_;
  std::vector<std::size_t> order_;
  std::vector<Column> columns_;
};

}  // namespace

std::vector<TaskletPlan> tile_box(const Work& work, const GemmBox& box, std::span<const DeviceState> devices,
                                  const PlanOptions& options) {
  const GemmCosts costs = gemm_costs(work, box);
  std::vector<TaskletPlan> best;
  double best_finish = std::numeric_limits<double>::infinity();
  for (const bool transposed : {false, true}) {
    const Plane plane{transposed ? box.n() : box.m(), transposed ? box.m() : box.n(),
                      static_cast<double>(costs.strip_bytes), static_cast<double>(costs.result_bytes),
                      2.0 * static_cast<double>(box.k())};
    Tiling tiling(plane, devices, options.server);
    const double finish = least_feasible([&](double t) { return tiling.attempt(t); }, 1e-4);
    if (!(finish < best_finish)) continue;
    best_finish = finish;
    best.clear();
    CLEAVE_ASSERT(tiling.attempt(finish), "not feasible at {} s", finish);
    tiling.place_tiles([&](std::size_t i, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
      TaskletPlan piece;
      piece.device = devices[i].profile.id;
      piece.box = transposed ? GemmBox{box.m0 + c0, box.m0 + c1, box.n0 + r0, box.n0 + r1, box.k0, box.k1}
                             : GemmBox{box.m0 + r0, box.m0 + r1, box.n0 + c0, box.n0 + c1, box.k0, box.k1};
      best.push_back(piece);
    });
  }
  return best;
}

std::vector<TaskletPlan> partition_grid(const Work& work, std::span<const DeviceState> devices,
                                        const PlanOptions& options) {
  const TaskletPlan whole = whole_of(work);
  return work.kind == WorkKind::gemm ? tile_box(work, whole.box, devices, options)
                                     : apportion_pairs(work, whole.pairs, devices, options);
}

}  // namespace cleave::plan
