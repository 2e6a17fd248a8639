// The best of two prices, where what is known of any two is on which side of a line better ones lie: a polygon around
// the best is cut through its centre, again and again.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cleave::plan {

using Point = std::array<double, 2>;

[[nodiscard]] inline Point centroid(std::span<const Point> polygon) {
  double area = 0;
  Point sum{0, 0};
  for (std::size_t i = 1; i + 1 < polygon.size(); ++i) {
    const Point &a = polygon[0], &b = polygon[i], &c = polygon[i + 1];
    const double twice = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
    area += twice;
    for (std::size_t x = 0; x < 2; ++x) sum[x] += twice * (a[x] + b[x] + c[x]) / 3;
  }
  return {sum[0] / area, sum[1] / area};
}

// What is left of a convex polygon where `slope` does not rise from `centre`.
[[nodiscard]] inline std::vector<Point> cut_off(std::span<const Point> polygon, const Point& centre,
                                                const Point& slope) {
  const auto above = [&](const Point& p) { return slope[0] * (p[0] - centre[0]) + slope[1] * (p[1] - centre[1]); };
  std::vector<Point> kept;
  for (std::size_t i = 0; i < polygon.size(); ++i) {
    const Point &p = polygon[i], &q = polygon[(i + 1) % polygon.size()];
    const double at_p = above(p), at_q = above(q);
    if (at_p <= 0) kept.push_back(p);
    if ((at_p < 0 && at_q > 0) || (at_p > 0 && at_q < 0)) {
      const double share = at_p / (at_p - at_q);
      kept.push_back({p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])});
    }
  }
  return kept;
}

/// Asks `slope_at` at `cuts` points: what better points do not rise along.
template <class SlopeAt>
void cut_to_best(std::vector<Point> polygon, int cuts, const SlopeAt& slope_at) {
  for (int i = 0; i < cuts && polygon.size() >= 3; ++i) {
    const Point centre = centroid(polygon);
    polygon = cut_off(polygon, centre, slope_at(centre));
  }
}

}  // namespace cleave::plan
