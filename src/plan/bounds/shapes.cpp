// Sums over devices of the most that each can do by a time, at its best depth.
#include "bounds/shapes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gemm_costs.hpp"

namespace cleave::plan {

namespace {

constexpr double kBlock = static_cast<double>(kBlockK), kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

Shapes::Shapes(const Work& work, const GemmBox& box)
    : m_(static_cast<double>(box.m())),
      n_(static_cast<double>(box.n())),
      k_(static_cast<double>(box.k())),
      element_(static_cast<double>(size_of(work.wire))),
      whole_(static_cast<double>(gemm_costs(work, box).result_bytes)),
      partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
      cell_(static_cast<double>(gemm_costs(work, box).cell_bytes)),
      blocks_(k_blocks(box.k())),
      tail_(static_cast<double>(box.k() - (blocks_ - 1) * kBlockK)),
      shorter_(std::min(m_, n_)) {}

Tally Shapes::tally(std::span<const DeviceClass> devices, double finish, const Terms& terms) const {
  Tally total;
  for (const auto& [rates, count] : devices) {
    const Budget budget = rates.by(finish);
    if (!budget.any()) continue;
    const Piece piece = best_piece(budget, terms);
    if (piece.value <= 0) continue;
    total.lines += count * piece.value;
    total.down += count * piece.down;
    total.up += count * piece.up;
    if (piece.depth < k_) {
      for (int p = 1; p <= 3; ++p) {
        total.cover_gain[static_cast<std::size_t>(p - 1)] +=
            count * piece.area * (cover(piece.depth, p) - piece.depth / k_);
      }
    }
  }
  return total;
}

// Every cut of a line into two pieces or more is worth at least one line: with s steps, pieces of depth d are at
// least (floor(s d / k) + 1) / (s + 1), because the floors of numbers that add up to s fall short by less than their
// count.
double Shapes::cover(double depth, double steps) const {
  return (std::floor(steps * depth / k_ + 1e-12) + 1) / (steps + 1);
}

// Fewest rows and columns together that span an area.
double Shapes::strips_for(double area) const {
  const double side = std::sqrt(area);
  return side <= shorter_ ? 2 * side : shorter_ + area / shorter_;
}

double Shapes::area_within(double strips) const {
  const double side = std::min(strips / 2, shorter_);
  return side * std::min(strips - side, std::max(m_, n_));
}

// The most that strips span at a depth when every block fits the memory, in one block or several.
double Shapes::area_in_memory(double strips, double depth, double memory) const {
  const double held = memory / (depth * element_);  // strips of the shorter side
  if (held >= std::min(strips / 2, shorter_)) return kUnlimited;
  const double longer = std::max(m_, n_), side = std::sqrt(memory / cell_);
  const double whole_result = side <= shorter_ ? side / 2 : shorter_ / (1 + shorter_ * shorter_ / (side * side));
  const double streamed = strips <= held + longer ? held * (strips - held) : strips * held * longer / (held + longer);
  return std::max(streamed, strips * whole_result);
}

// The depth below which area_in_memory() is larger than an area.
double Shapes::deepest_in_memory(const Budget& budget, double area) const {
  if (budget.memory >= budget.down / 2) return kUnlimited;
  const double longer = std::max(m_, n_), side = std::sqrt(budget.memory / cell_);
  const double whole_result = side <= shorter_ ? side / 2 : shorter_ / (1 + shorter_ * shorter_ / (side * side));
  const double held = budget.memory, down = budget.down;
  double column = std::sqrt(held * (down - held) / area);  // bytes of a strip
  if (column < (down - held) / longer) {
    column = (std::sqrt(held * held + 4 * longer * longer * down * held / area) - held) / (2 * longer);
  }
  return std::max({column, down * whole_result / area, held / shorter_}) / element_;
}

void Shapes::consider(Piece& best, const Budget& budget, const Terms& terms, double depth, bool whole) const {
  const double result = whole ? whole_ : partial_;
  const double strips = budget.down / (depth * element_);
  double area = std::min({budget.up / result, budget.flops / (2 * depth), area_within(strips)});
  if (terms.out_price == 0 && terms.in_price == 0) area = std::min(area, area_in_memory(strips, depth, budget.memory));
  double worth = whole ? 1.0 : depth / k_;
  if (!whole && terms.cover_share > 0) { worth += terms.cover_share * (cover(depth, terms.cover_steps) - worth); }
  const double down = strips_for(area) * depth * element_, up = area * result;
  const double value = area * worth - terms.out_price * down - terms.in_price * up;
  if (value > best.value) best = {value, area * worth, down, up, area, depth};
}

// The whole blocks (and the last, shorter one) on both sides of a depth.
void Shapes::consider_near(Piece& best, const Budget& budget, const Terms& terms, double depth) const {
  const double last = static_cast<double>(blocks_ - 1);
  const double low = std::clamp(std::floor(depth / kBlock), 1.0, last);
  consider(best, budget, terms, low * kBlock, false);
  if (low < last) consider(best, budget, terms, (low + 1) * kBlock, false);
  if (tail_ == kBlock) return;
  const double tailed = std::clamp(std::floor((depth - tail_) / kBlock), 0.0, last - 1);
  consider(best, budget, terms, tail_ + tailed * kBlock, false);
  if (tailed < last - 1) consider(best, budget, terms, tail_ + (tailed + 1) * kBlock, false);
}

Piece Shapes::best_piece(const Budget& budget, const Terms& terms) const {
  Piece best;
  consider(best, budget, terms, k_, true);
  if (blocks_ == 1) return best;
  // With growing depth first the uplink (or the extents) limits the area, then the processor, then the downlink.
  const double widest = std::min(budget.up / partial_, m_ * n_);
  const double strips = budget.down / element_;
  const bool priced = terms.out_price > 0 || terms.in_price > 0;
  const double to_downlink =
      std::min(strips / strips_for(widest), priced ? kUnlimited : deepest_in_memory(budget, widest));
  const double to_processor = budget.flops / (2 * widest);
  const double kink = std::min(to_downlink, to_processor);
  consider_near(best, budget, terms, kink);
  if (terms.cover_share > 0) {
    for (double step = 1; step < terms.cover_steps; ++step) {
      const double depth = std::ceil(step * k_ / terms.cover_steps / kBlock - 1e-9) * kBlock;
      if (depth < k_) consider_near(best, budget, terms, depth);
    }
  }
  if (terms.in_price > 0) {
    // The processor limits between kink and this depth, the downlink beyond it.
    double beyond = kink;
    if (to_processor < to_downlink) {
      const double half = budget.flops / 2;
      beyond = strips * strips / (4 * half);
      if (half / beyond > shorter_ * shorter_) beyond = (strips - half / shorter_) / shorter_;
      const double rate = terms.in_price * partial_;
      if (terms.out_price > 0) {
        double rest = std::pow(rate * std::sqrt(half) / (terms.out_price * element_), 2.0 / 3.0);
        if (half / rest > shorter_ * shorter_) {
          rest = std::sqrt(rate * half / (terms.out_price * element_ * shorter_));
        }
        consider_near(best, budget, terms, std::clamp(rest, kink, std::max(kink, beyond)));
      }
      consider_near(best, budget, terms, beyond);
    }
    double rest = 2 * terms.in_price * partial_ * k_;
    if (strips / rest / 2 > shorter_) rest = std::sqrt(terms.in_price * partial_ * k_ * strips / shorter_);
    consider_near(best, budget, terms, std::max(rest, beyond));
  }
  return best;
}

}  // namespace cleave::plan
