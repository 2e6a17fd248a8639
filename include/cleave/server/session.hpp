// What the parts of a server are given: how to execute, which ranks to serve, and what one step works on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/units.hpp"
#include "cleave/server/verification.hpp"

namespace cleave::server {

/// When a tasklet's operands travel in parts to a rank of another host, so that it works on one while the next one is
/// gathered and carried. Parts are of rows, of whole K blocks or of attention pairs, as operands are stored.
struct PartLimits {
  std::int64_t most = 8;               ///< of a tasklet, where memory asks for no more
  std::int64_t least_rows = 256;       ///< fewer: preparing B again for each part would show (some 30 / rows)
  std::int64_t least_bytes = 1 << 20;  ///< of operands, of rows without B; fewer: the messages themselves would show
};

struct ExecutorOptions {
  int threads = 1;  ///< of server kernels; no result depends on it
  Verification verification;
  PartLimits parts{};
  bool profile = false;  ///< keep a Profile of the training steps
};

/// AdamW's figures for one update; k counts updates from 1.
struct UpdateTerms {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0, grad_clip = 0;
  std::int64_t k = 1;
};

/// Called with each parameter's gradient (unclipped) just before its update; rows * cols floats.
using GradientObserver = std::function<void(std::string_view name, std::span<const float> gradient)>;

/// One step's data. The spans must stay valid until the step is over.
struct StepInputs {
  std::span<const std::int32_t> tokens, targets;
  UpdateTerms update;
  GradientObserver on_gradient;
};

}  // namespace cleave::server
