// What the parts of a server are given: options of execution, and the data of one step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/units.hpp"
#include "cleave/server/verification.hpp"

namespace cleave::server {

/// How a tasklet's operands are cut into parts for a rank of another host, so that the rank computes one part while the
/// next one is gathered and carried. Parts are of rows, of whole K blocks or of attention pairs.
struct PartLimits {
  std::int64_t most = 8;          ///< most parts of a tasklet, unless memory requires more
  std::int64_t least_rows = 256;  ///< of a part; with fewer, packing B for each part costs too much (about 30 / rows)
  std::int64_t least_bytes = 1 << 20;  ///< of a part's operands, without B; with fewer, messages cost too much
};

/// How a step is executed with real numbers.
struct ExecutorOptions {
  int threads = 1;  ///< of server kernels; results do not depend on it
  Verification verification;
  PartLimits parts{};
  bool profile = false;  ///< keep a Profile of the training steps
};

/// AdamW's settings for one update (kernels::AdamW).
struct UpdateTerms {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_clip = 0;  ///< largest global gradient norm; 0: no clipping
  std::int64_t k = 1;    ///< number of the update, from 1
};

/// Called with each parameter's gradient (unclipped) just before its update; rows * cols floats.
using GradientObserver = std::function<void(std::string_view name, std::span<const float> gradient)>;

/// The data of one step. Requires: the spans stay valid until the step is over.
struct StepInputs {
  std::span<const std::int32_t> tokens, targets;  ///< [B, T], row-major
  UpdateTerms update;
  GradientObserver on_gradient;
};

}  // namespace cleave::server
