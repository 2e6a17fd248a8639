// How surely devices that collude are found out where second devices return digests: formulas. docs/security.md has the
// table.
#pragma once

#include <cmath>
#include <cstdint>

namespace cleave::sched {

/// A coalition of devices, and the checks that it faces. Its devices return the same false blocks, and as witnesses
/// confirm each other's.
struct Collusion {
  std::int64_t devices = 0;       ///< n, all alike, each of another host, operator and domain
  std::int64_t coalition = 0;     ///< k of them collude, 1 <= k < n
  double fraction = 0;            ///< f: share of tasklets that have a witness
  std::int64_t false_blocks = 0;  ///< m: false blocks that a device of the coalition returns in each step
  std::int64_t rollback = 0;      ///< N: steps that can be taken back, besides the one under way
};

/// Probability that a false block is found out: it has a witness, drawn uniformly among the other n - 1 devices, and
/// the witness is not of the coalition:
///   q = f (n - k) / (n - 1)
[[nodiscard]] inline double detection_chance(const Collusion& c) {
  return c.fraction * static_cast<double>(c.devices - c.coalition) / static_cast<double>(c.devices - 1);
}

/// The share of the checked visits in stages that the server recomputes itself, so that a stage whose replicas all
/// collude is found out too.
inline constexpr double kServerWitnessShare = 1.0 / 32;

/// Probability that a false visit in stages is found out: the server recomputes it, or its witness, drawn uniformly
/// among the R - 1 other replicas of the stage, is none of the k - 1 that collude with the one that ran it:
///   q = f (g + (1 - g) (R - k) / (R - 1)),  g = kServerWitnessShare;  with R = 1, q = f
[[nodiscard]] inline double visit_detection_chance(double fraction, std::int64_t replicas, std::int64_t coalition) {
  if (replicas == 1) return fraction;
  const double apart = static_cast<double>(replicas - coalition) / static_cast<double>(replicas - 1);
  return fraction * (kServerWitnessShare + (1 - kServerWitnessShare) * apart);
}

/// Probability that a false block stays in the parameters: none of its device's false blocks is found out in its step,
/// nor in the N steps after it, with m false blocks in each:
///   P = (1 - q)^(m (N + 1))
[[nodiscard]] inline double stand_chance(const Collusion& c) {
  return std::pow(1 - detection_chance(c), static_cast<double>(c.false_blocks * (c.rollback + 1)));
}

}  // namespace cleave::sched
