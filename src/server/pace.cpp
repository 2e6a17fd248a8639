// Differences of two clocks.
#include "pace.hpp"

#include <algorithm>

namespace cleave::server {

void Pace::begin(Seconds real, Seconds modelled) {
  real_begin_ = real_ = real;
  modelled_begin_ = modelled_ = modelled;
}

Seconds Pace::left(Seconds real, Seconds modelled) const {
  return std::max(Seconds(0), modelled - modelled_begin_ - (real - real_begin_));
}

void Pace::passed(Seconds real, Seconds modelled) {
  real_ = real;
  modelled_ = modelled;
  lateness_ = std::max(lateness_, real - real_begin_ - (modelled - modelled_begin_));
}

double Pace::dilation() const {
  const Seconds modelled = modelled_ - modelled_begin_;
  return modelled.value() > 0 ? std::max(1.0, (real_ - real_begin_) / modelled) : 1.0;
}

}  // namespace cleave::server
