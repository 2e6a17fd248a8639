// The best block of a device when blocks are counted by how many of them a box needs side by side: what the sharper
// lower bound adds up.
//
// Volumes alone allow 1.3 blocks across a side, where there must be two. So a share of all lines is counted otherwise
// (docs/cost_model.md derives it): half at each end of a row, a column or the depth, or by the
// length of the blocks' sides, of which two blocks need much more than one.
#pragma once

#include "bounds/shapes.hpp"
#include "device_rates.hpp"

namespace cleave::plan {

/// How the lines of a block are counted, and what a byte through the server's interface costs, in lines.
struct CoverWeights {
  double row_end_weight = 0;     ///< share of a row's length that counts at both of its ends
  double column_end_weight = 0;  ///< of a column's
  double depth_end_weight = 0;   ///< of the depth
  double tail_discount = 0;      ///< of the shorter last K block, the share that the others count for it
  double perimeter_weight = 0;   ///< share of a plane that counts by the length of the blocks' sides
  double out_price = 0, in_price = 0;
};

/// A block's worth less its price, and what it moves.
struct Offer {
  double value = 0, down = 0, up = 0;
};

class CoverBound {
 public:
  CoverBound(const Work& work, const GemmBox& box, const CoverWeights& cover);

  [[nodiscard]] double lines() const { return m_ * n_; }
  /// Elements of the result that a block of this budget has at most.
  [[nodiscard]] double largest(const Budget& budget) const;
  /// No block has more elements of the result than this: sides are then longer together.
  void limit(double largest);
  /// The most that a block of this budget is worth, from above to a share of it; value 0 when none is worth its price.
  [[nodiscard]] Offer best(const Budget& budget, double precision) const;
  /// Lines that a byte down is counted as where only the sides of blocks count.
  [[nodiscard]] double worth_of_perimeter() const { return lines() / sides_ / (k_ * element_); }
  /// What a block is counted as, in lines. Sums to all lines at least, over the blocks of any tiling.
  [[nodiscard]] double counted(double rows, double columns, double depth) const;

 private:
  // Blocks within these limits.
  struct Limits {
    double share = 0;             // of the depth
    double strips = 0, area = 0;  // rows and columns together, and elements of the result
    double strip_price = 0, area_price = 0;
    double strip_bytes = 0, area_bytes = 0;
  };
  [[nodiscard]] double share_of(double depth) const;
  [[nodiscard]] Limits limits(const Budget& budget, double depth, double share, bool whole) const;
  [[nodiscard]] Offer best_within(const Limits& limits) const;
  void search(const Budget& budget, std::int64_t low, std::int64_t high, double precision, Offer& best) const;

  CoverWeights weights_;
  double m_, n_, k_;
  double element_, whole_, partial_;
  std::int64_t blocks_;
  double tail_;
  double block_share_ = 0, tail_share_ = 0;  // of the depth
  double sides_ = 0, edge_ = 0;              // rows and columns of all blocks of a plane, and lines to one of them
};

/// A finish time before which the box cannot be done, at least that of `bound`. Beyond `enough` no more is searched
/// for.
[[nodiscard]] double sharper_bound(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
                                   const fleet::ServerProfile& server, const BoxBound& bound, double enough);

}  // namespace cleave::plan
