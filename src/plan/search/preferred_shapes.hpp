// Which shape of block each device does best by a finish time. Groups of devices are formed by it.
#pragma once

#include <algorithm>
#include <cmath>

#include "bounds/shapes.hpp"
#include "search/tiling_2d.hpp"

namespace cleave::plan {

/// A device with the shape of block that it does best.
struct PreferredShape {
  DeviceRates device;
  double lines = 0;  ///< elements of the result, over the whole depth, that it could do in its best shape
  double depth = 0;  ///< of that shape, in blocks
  double area = 0;
  bool whole = false;  ///< at the whole depth
};

/// The shapes that devices do best by a finish time.
class PreferredShapes {
 public:
  PreferredShapes(const Work& work, const GemmBox& box, const Terms& terms)
      : shapes_(work, box),
        terms_(terms),
        box_(box),
        element_(static_cast<double>(size_of(work.wire))),
        partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
        k_(static_cast<double>(box.k())),
        least_depth_(std::max(kBlock, 2 * terms.in_price * partial_ * k_)),
        whole_{box.m(), box.n(), k_ * element_, element_, 2 * k_, partial_} {}

  /// The best shape of all. Without prices where they leave it nothing worth doing.
  [[nodiscard]] PreferredShape of(const DeviceRates& device, double finish) const {
    const Budget budget = device.by(finish);
    if (!budget.any()) return {device};
    Piece piece = shapes_.best_piece(budget, terms_);
    if (piece.value <= 0) piece = shapes_.best_piece(budget, {});
    return {device, piece.lines, piece.depth / kBlock, piece.area, piece.depth == k_};
  }

  /// In partial sums, on planes of an area of their own. The depth at which downlink and uplink are done together; a
  /// price on bytes up makes it deeper.
  [[nodiscard]] PreferredShape shallow(const DeviceRates& device, double finish, double plane_area) const {
    const Budget budget = device.by(finish);
    if (!budget.any()) return {device};
    const double area = std::min(budget.up / partial_, plane_area);
    const auto shorter = static_cast<double>(std::min(box_.m(), box_.n()));
    const double side = std::sqrt(area), strips = side <= shorter ? 2 * side : shorter + area / shorter;
    const double kink = std::min(budget.down / element_ / strips, budget.flops / (2 * area));
    const double depth = std::min(terms_.deepen * std::max(kink, least_depth_), k_ - kBlock / 2);
    const double most = std::min(plane_area, area_by(budget, depth));
    return {device, most * depth / k_, depth / kBlock, most, false};
  }
  /// Elements of the result that it could do at the whole depth.
  [[nodiscard]] double whole_lines(const DeviceRates& device, double finish) const {
    return largest_area(whole_, reach_of(whole_, device.by(finish)));
  }
  /// What a device can cover at a depth in elements, in partial sums.
  [[nodiscard]] double area_at(const DeviceRates& device, double finish, std::int64_t depth) const {
    return area_by(device.by(finish), static_cast<double>(depth));
  }

 private:
  static constexpr double kBlock = static_cast<double>(kBlockK);
  [[nodiscard]] double area_by(const Budget& budget, double depth) const {
    const Tiling2D plane{box_.m(), box_.n(), depth * element_, partial_, 2 * depth, partial_};
    return largest_area(plane, reach_of(plane, budget));
  }

  Shapes shapes_;
  Terms terms_;
  GemmBox box_;
  double element_, partial_, k_, least_depth_;
  Tiling2D whole_;
};

}  // namespace cleave::plan
