// What devices that collude can do where a second device returns digests: as a formula (docs/security.md has the
// table).
#pragma once

#include <cmath>
#include <cstdint>

namespace cleave::sched {

/// A coalition and the terms that it faces. Its devices lie alike, and confirm each other's lies.
struct Collusion {
  std::int64_t devices = 0;       ///< n, all alike, each of another host, operator and domain
  std::int64_t coalition = 0;     ///< k of them, 1 <= k < n
  double fraction = 0;            ///< f: share of tasklets that have a witness
  std::int64_t false_blocks = 0;  ///< m: that a device of the coalition returns in each step
  std::int64_t rollback = 0;      ///< N: steps that can be taken back, besides the one under way
};

/// The chance that a false block is found out: it has a witness, who is drawn among the other n - 1 devices alike.
///   q = f (n - k) / (n - 1)
[[nodiscard]] inline double detection_chance(const Collusion& c) {
  return c.fraction * static_cast<double>(c.devices - c.coalition) / static_cast<double>(c.devices - 1);
}

/// Of visits in stages that are drawn: the server's own share, so that a stage whose replicas all collude is seen.
inline constexpr double kServersShare = 1.0 / 32;

/// The chance that a false visit in stages is found out: its witness is drawn among the R - 1 other replicas of the
/// stage, all alike, of which k - 1 collude with the one that ran it; or the server makes it again.
///   q = f (g + (1 - g) (R - k) / (R - 1)),  g = kServersShare;  with R = 1, q = f
[[nodiscard]] inline double visit_detection_chance(double fraction, std::int64_t replicas, std::int64_t coalition) {
  if (replicas == 1) return fraction;
  const double apart = static_cast<double>(replicas - coalition) / static_cast<double>(replicas - 1);
  return fraction * (kServersShare + (1 - kServersShare) * apart);
}

/// The chance that a false bit stands: none of its device's false blocks is found out in the step in which it came, nor
/// in the N after it, in each of which the device returns m.
///   P = (1 - q)^(m (N + 1))
[[nodiscard]] inline double stand_chance(const Collusion& c) {
  return std::pow(1 - detection_chance(c), static_cast<double>(c.false_blocks * (c.rollback + 1)));
}

}  // namespace cleave::sched
