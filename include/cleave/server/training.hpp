// Settings of a training run and the figures of its steps: plain values that app reads from inputs and writes to files.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/base/units.hpp"

namespace cleave::server {

/// AdamW, its schedule, and how often to evaluate. docs/interface.md names the keys; what the step itself depends on is
/// in sched::StepSpec.
struct TrainSettings {
  std::int64_t steps = 100;
  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t warmup_steps = 0;    ///< W
  std::int64_t lr_decay_steps = 0;  ///< D; at and after it the rate is min_lr
  double beta1 = 0.9, beta2 = 0.95, adam_eps = 1e-8;
  double weight_decay = 0.1;      ///< of matrices and embeddings, not of vectors
  double grad_clip = 1.0;         ///< largest global gradient norm; 0: no clipping
  std::uint64_t seed = 1;         ///< of initial parameters and batches
  std::int64_t eval_every = 0;    ///< steps between evaluations; 0: none
  std::int64_t eval_batches = 0;  ///< batches of one evaluation; 0: the whole validation split
};

/// Learning rate of update s = 0, 1, ...:
///   s < W: lr (s+1)/(W+1);   s >= D: min_lr;   otherwise min_lr + (1 + cos(pi (s-W)/(D-W)))/2 (lr - min_lr).
/// Source: nanoGPT's schedule, as docs/numerics.md and the reference cases state it.
[[nodiscard]] double learning_rate(const TrainSettings& settings, std::int64_t step);

/// Factor on the gradient: min(1, grad_clip / (norm + 1e-6)); 1 when grad_clip is 0.
[[nodiscard]] double clip_factor(double grad_clip, double norm);

/// The outcome of one training step; sched::StepReport has its cost.
struct StepOutcome {
  double loss = 0;       ///< mean cross-entropy in nats, before the update
  double grad_norm = 0;  ///< before clipping
  double clip = 1;       ///< factor that the gradient was multiplied by
  double lr = 0;
};

}  // namespace cleave::server
