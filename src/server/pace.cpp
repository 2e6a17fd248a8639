// Differences of two clocks.
#include "pace.hpp"

#include <algorithm>

namespace cleave::server {

void Pace::begin(Seconds real, Seconds modelled) {
  real_begin_ = real_ = real;
  modelled_begin_ = modelled_ = modelled;
  late_ = Seconds(0);
  by_rank_.clear();
}

Seconds Pace::left(Seconds real, Seconds modelled) const {
  return std::max(Seconds(0), modelled - modelled_begin_ - (real - real_begin_));
}

void Pace::passed(Seconds real, Seconds modelled, int rank, Seconds waited) {
  real_ = real;
  modelled_ = modelled;
  const Seconds late = std::max(Seconds(0), real - real_begin_ - (modelled - modelled_begin_));
  if (late > late_) {
    const Seconds theirs = std::min(late - late_, waited);
    if (theirs > Seconds(0)) by_rank_[rank] += theirs;
    by_rank_[0] += late - late_ - theirs;
  } else {
    for (auto& [who, part] : by_rank_) part = late_ > Seconds(0) ? part * (late / late_) : Seconds(0);
  }
  late_ = late;
  lateness_ = std::max(lateness_, late);
}

std::map<int, double> Pace::shares() const {
  const Seconds modelled = modelled_ - modelled_begin_;
  std::map<int, double> shares;
  for (const auto& [rank, part] : by_rank_) shares[rank] = modelled > Seconds(0) ? part / modelled : 0;
  return shares;
}

double Pace::dilation() const {
  const Seconds modelled = modelled_ - modelled_begin_;
  return modelled.value() > 0 ? std::max(1.0, (real_ - real_begin_) / modelled) : 1.0;
}

}  // namespace cleave::server
