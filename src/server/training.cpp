// The learning-rate schedule.
#include "cleave/server/training.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cleave::server {

double learning_rate(const TrainSettings& s, std::int64_t step) {
  if (step < s.warmup_steps) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps + 1);
  if (step >= s.lr_decay_steps) return s.min_lr;
  const double progress =
      static_cast<double>(step - s.warmup_steps) / static_cast<double>(s.lr_decay_steps - s.warmup_steps);
  return s.min_lr + 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) * (s.lr - s.min_lr);
}

double clip_factor(double grad_clip, double norm) {
  return grad_clip > 0 ? std::min(1.0, grad_clip / (norm + 1e-6)) : 1.0;
}

}  // namespace cleave::server
