// For every depth the best rows and columns in closed form; depths by branch and bound.
#include "bounds/cover_bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "gemm_costs.hpp"

namespace cleave::plan {

namespace {

constexpr double kBlockDepth = static_cast<double>(kBlockK);

}  // namespace

CoverBound::CoverBound(const Work& work, const GemmBox& box, const CoverWeights& cover)
    : weights_(cover),
      m_(static_cast<double>(box.m())),
      n_(static_cast<double>(box.n())),
      k_(static_cast<double>(box.k())),
      element_(static_cast<double>(size_of(work.wire))),
      whole_(static_cast<double>(gemm_costs(work, box).result_bytes)),
      partial_(static_cast<double>(size_of(partial_sum_type(work.wire)))),
      blocks_(k_blocks(box.k())),
      tail_(static_cast<double>(box.k() - (blocks_ - 1) * kBlockK)) {
  tail_share_ = (1 - cover.tail_discount) * tail_ / k_;
  if (tail_ == kBlockDepth || blocks_ == 1) tail_share_ = tail_ / k_;
  if (blocks_ > 1) block_share_ = (1 - tail_share_) / static_cast<double>(blocks_ - 1);
  limit(lines());
}

double CoverBound::largest(const Budget& budget) const {
  const double whole_strips = budget.down / (k_ * element_);
  const double whole = std::min(budget.up / whole_, whole_strips * whole_strips / 4);
  if (blocks_ == 1) return std::min(whole, lines());
  const double strips = budget.down / (std::min(tail_, kBlockDepth) * element_);
  return std::min(lines(), std::max(whole, std::min(budget.up / partial_, strips * strips / 4)));
}

void CoverBound::limit(double largest) {
  double inside = std::min(m_, n_);
  if (largest < lines() / 2) {
    const double left = 1 - largest / lines();
    inside = std::min({m_ + n_ * left, n_ + m_ * left, 2 * inside});
  }
  sides_ = m_ + n_ + inside;
  edge_ = weights_.perimeter_weight * lines() / sides_;
}

double CoverBound::share_of(double depth) const {
  if (depth >= k_) return 1;
  const double blocks = std::floor(depth / kBlockDepth);
  const double share = blocks * block_share_ + (blocks * kBlockDepth < depth ? tail_share_ : 0);
  return (1 - weights_.depth_end_weight) * share + weights_.depth_end_weight / 2;
}

double CoverBound::counted(double rows, double columns, double depth) const {
  if (rows >= m_ && columns >= n_) return share_of(depth) * lines();
  const double down = rows >= m_ ? m_ : (1 - weights_.column_end_weight) * rows + weights_.column_end_weight * m_ / 2;
  const double across = columns >= n_ ? n_ : (1 - weights_.row_end_weight) * columns + weights_.row_end_weight * n_ / 2;
  return share_of(depth) * ((1 - weights_.perimeter_weight) * down * across + edge_ * (rows + columns));
}

CoverBound::Limits CoverBound::limits(const Budget& budget, double depth, double share, bool whole) const {
  const double result = whole ? whole_ : partial_, strip = depth * element_;
  return {share,
          budget.down / strip,
          std::min(budget.up / result, budget.flops / (2 * depth)),
          weights_.out_price * strip,
          weights_.in_price * result,
          strip,
          result};
}

// A block of r < m rows and c < n columns is worth g r c + (h - s) r + (j - s) c + corner. That is linear in r, so r is
// as large as it can be, or nothing; and along that the best c is an end or a stationary point of one of the limits.
Offer CoverBound::best_within(const Limits& limits) const {
  const double strips = limits.strips, area = limits.area, plain = limits.share * (1 - weights_.perimeter_weight);
  const double row_end = weights_.row_end_weight * n_ / 2, column_end = weights_.column_end_weight * m_ / 2;
  const double g = plain * (1 - weights_.row_end_weight) * (1 - weights_.column_end_weight) - limits.area_price;
  const double s = limits.strip_price - limits.share * edge_;
  const double by_r = plain * (1 - weights_.column_end_weight) * row_end - s;
  const double by_c = plain * (1 - weights_.row_end_weight) * column_end - s;
  const double corner = plain * row_end * column_end;
  Offer best;
  const auto offer = [&](double value, double r, double c) {
    if (value > best.value) best = {value, (r + c) * limits.strip_bytes, r * c * limits.area_bytes};
  };
  const double widest = std::min(n_, strips), tallest = std::min(m_, strips);
  const auto longest = [&](double c) { return std::min({m_, strips - c, area / c}); };
  // Slivers.
  offer(corner, 0, 0);
  offer(corner + by_c * widest, 0, widest);
  offer(corner + by_r * tallest, tallest, 0);
  const auto consider = [&](double c) {
    if (!(c > 0)) return;
    c = std::min(c, widest);
    const double r = longest(c);
    offer(g * r * c + by_r * r + by_c * c + corner, r, c);
  };
  consider(widest);
  consider(strips - m_);
  consider(area / m_);
  if (g > 0) consider((strips + (by_c - by_r) / g) / 2);
  if (by_r < 0 && by_c < 0) consider(std::sqrt(area * by_r / by_c));
  if (const double square = strips * strips - 4 * area; square > 0) {
    const double root = std::sqrt(square);
    consider((strips - root) / 2);
    consider((strips + root) / 2);
  }
  // All rows, or all columns, or both.
  if (strips > m_) {
    const double c = std::min({n_, strips - m_, area / m_}), end = (plain * row_end - s) * m_;
    const double slope = (plain * (1 - weights_.row_end_weight) - limits.area_price) * m_ - s;
    offer(end, m_, 0);
    offer(end + slope * c, m_, c);
    if (c >= n_) offer((limits.share - limits.area_price) * lines() - limits.strip_price * (m_ + n_), m_, n_);
  }
  if (strips > n_) {
    const double r = std::min({m_, strips - n_, area / n_}), end = (plain * column_end - s) * n_;
    const double slope = (plain * (1 - weights_.column_end_weight) - limits.area_price) * n_ - s;
    offer(end, 0, n_);
    offer(end + slope * r, r, n_);
  }
  return best;
}

// A range of depths that cannot be better than the best so far by more than a share of it is left out.
void CoverBound::search(const Budget& budget, std::int64_t low, std::int64_t high, double precision,
                        Offer& best) const {
  if (low == high) {
    const auto depth = static_cast<double>(low) * kBlockDepth;
    for (const double d : {depth, depth - kBlockDepth + tail_}) {
      const Offer offer = best_within(limits(budget, d, share_of(d), false));
      if (offer.value > best.value) best = offer;
      if (tail_ == kBlockDepth) return;
    }
    return;
  }
  const double shallowest = static_cast<double>(low - 1) * kBlockDepth + tail_;
  const double share = share_of(static_cast<double>(high) * kBlockDepth);
  if (best_within(limits(budget, shallowest, share, false)).value <= best.value * (1 + precision)) return;
  const auto middle = std::clamp(static_cast<std::int64_t>(std::sqrt(static_cast<double>(low * high))), low, high - 1);
  search(budget, middle + 1, high, precision, best);
  search(budget, low, middle, precision, best);
}

Offer CoverBound::best(const Budget& budget, double precision) const {
  Offer best = best_within(limits(budget, k_, 1, true));
  if (blocks_ > 1) {
    // First where downlink and uplink are done together, or nearly: the better the best so far, the more is left out.
    const double together = budget.down / element_ / (2 * std::sqrt(std::min(budget.up / partial_, lines())));
    const auto near =
        std::clamp(static_cast<std::int64_t>(std::min(together, k_) / kBlockDepth), std::int64_t{1}, blocks_ - 1);
    search(budget, near, near, precision, best);
    search(budget, 1, blocks_ - 1, precision, best);
  }
  best.value *= 1 + precision;
  return best;
}

}  // namespace cleave::plan
