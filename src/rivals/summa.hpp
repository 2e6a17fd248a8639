// What a product on a grid of devices moves: SUMMA in two, 2.5 and three dimensions.
#pragma once

#include <cstddef>
#include <string>

namespace cleave::rivals {

struct GridShape {
  std::size_t side = 1, depth = 1;  ///< q and c
  bool cube = false;                ///< three dimensions: the depth is q
  [[nodiscard]] std::size_t devices() const { return side * side * (cube ? side : depth); }
  [[nodiscard]] std::string name() const;
};

struct GridProduct {
  double m = 0, n = 0, k = 0;
};

/// Bytes that a device sends for a product, as many as it receives, and in how many messages; `element` in bytes:
///   2 D    (m k + k n) / q (q - 1) / q                        panels of A along rows, of B along columns, q steps
///   2.5 D  the same / c, and m n / q^2 (c - 1) / c            c layers, each a part of the depth, then one sum
///   3 D    (m k + k n + m n) / q^2 (q - 1) / q                gather A, gather B, scatter C
/// Example: 2 D, q = 2, m = n = k = 4: a device owns 2 x 2 of A and of B, and receives the other 2 x 2 of its rows of A
/// and of its columns of B: 8 elements.
struct GridTraffic {
  double bytes = 0, messages = 0;
};
[[nodiscard]] GridTraffic traffic_of(const GridProduct& product, const GridShape& shape, double element);

}  // namespace cleave::rivals
