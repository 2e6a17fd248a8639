// The best block that a device can do by a time, its shape free in three dimensions: what the lower bound adds up, and
// what the planner takes as the shape that each device prefers.
//
// Counted in lines: a line is one element of the result over the whole depth of the box, so the box is m*n lines, and a
// block of area a and depth d is worth a * phi(d) lines. phi(d) = d/k counts volume. Any phi for which every way of
// cutting a depth into pieces is worth at least one line gives a valid bound; cover() is a sharper one where depths are
// a large part of k. The server's interface enters as prices per byte.
//
// Memory: a block that streams along its longer side holds the strips of the shorter, one that streams along k holds
// its result. A device that can hold neither must do several blocks, and strips travel again; what it then does at most
// is counted, but only where there are no prices, because prices alone give a valid bound, too.
#pragma once

#include <array>
#include <cstdint>

#include "device_rates.hpp"

namespace cleave::plan {

/// What a byte through the server's interface costs, in lines, and how depth is counted.
struct Terms {
  double out_price = 0, in_price = 0;
  double deepen = 1;       ///< blocks deeper than these prices make them, by this factor
  double cover_share = 0;  ///< of the step function in phi
  double cover_steps = 1;
};

/// A block: its worth less its price, what it moves, and its shape (depth in elements).
struct Piece {
  double value = 0, lines = 0, down = 0, up = 0, area = 0, depth = 0;
};

/// What the devices do at best by some time.
struct Tally {
  double lines = 0;  ///< worth less prices
  double down = 0, up = 0;
  std::array<double, 3> cover_gain{};  ///< change of lines per cover_share, for cover_steps 1, 2, 3
};

class Shapes {
 public:
  Shapes(const Work& work, const GemmBox& box);

  [[nodiscard]] double lines() const { return m_ * n_; }
  /// value 0: nothing that is worth its price.
  [[nodiscard]] Piece best_piece(const Budget& budget, const Terms& terms) const;
  [[nodiscard]] Tally tally(std::span<const DeviceClass> devices, double finish, const Terms& terms) const;

 private:
  [[nodiscard]] double cover(double depth, double steps) const;
  [[nodiscard]] double strips_for(double area) const;
  [[nodiscard]] double area_within(double strips) const;
  [[nodiscard]] double area_in_memory(double strips, double depth, double memory) const;
  [[nodiscard]] double deepest_in_memory(const Budget& budget, double area) const;
  void consider(Piece& best, const Budget& budget, const Terms& terms, double depth, bool whole) const;
  void consider_near(Piece& best, const Budget& budget, const Terms& terms, double depth) const;

  double m_, n_, k_, element_, whole_, partial_, cell_;
  std::int64_t blocks_;
  double tail_, shorter_;
};

/// The lower bound of a box, and the prices of the server's interface that give it.
struct BoxBound {
  double finish = 0;  ///< kNever when it cannot be done
  Terms terms;        ///< prices only
  double pause = 0;   ///< of the finish, for which the server's interface carries nothing that is of use by then
  double wanted = 0;  ///< a finish that is worth tenths of a second to find; 0 where none is
};
/// `pause` as BoxBound has it.
[[nodiscard]] BoxBound bound_box(const Work& work, const GemmBox& box, std::span<const DeviceRates> device_rates,
                                 const fleet::ServerProfile& server, double pause);

}  // namespace cleave::plan
