// Asteroid's hybrid pipeline: stages of device groups, their memory, their samples, and the latency of a round.
//
// Devices are sorted by memory, largest first, and cut into P consecutive groups; group p runs the units of stage p on
// the samples of a micro-batch that fall to its devices. Stage p keeps K_p = 2 (P - p) - 1 micro-batches in flight:
//   memory of a device  = state + at work + K_p * activations of its samples
//   communication step  = micro-batch * activation / slowest link between the two groups, forward and backward alike
//   all-reduce          = 2 (|G| - 1) / |G| * gradients of the stage / slowest link within the group
// Stages and communications in turn are S = 2P - 1 steps; with M micro-batches, the dominant step dm (largest E = Ef +
// Eb):
//   round latency = max over s of  sum_{k<s} Ef_k + Te_s + all-reduce_s,
//   Te_dm = M E_dm;  before it Te_s = Te_dm + sum_{s <= i < dm} E_i;  after it Te_s = Te_dm - sum_{dm < i <= s} E_i
// Source: Ye et al. 2024 (arXiv 2408.08015), equations as public re-implementations state them; docs/rivals.md. Of
// equal steps the last one is dominant, which gives the closed form of a balanced pipeline.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "network.hpp"
#include "workload.hpp"

namespace cleave::rivals {

/// What planner and cost share. References must outlive it.
struct AsteroidProblem {
  const Workload& workload;
  const Network& network;
  std::vector<std::size_t> devices;  ///< positions in the network, by memory, largest first
  std::int64_t micro_batch = 1;      ///< samples
  std::int64_t micro_batches = 1;    ///< M
  bool recompute = false;            ///< granted: keep the inputs of layers only
  bool sharded = false;              ///< granted to asteroid-plus: moments in shards over a group
  bool copies = false;               ///< each shard is kept twice, so that a loss leaves one

  /// Devices that share the moments of a group of so many.
  [[nodiscard]] std::int64_t sharing(std::size_t members) const {
    if (!sharded) return 1;
    return static_cast<std::int64_t>(copies ? (members + 1) / 2 : members);
  }
};

struct AsteroidStage {
  std::size_t first = 0, last = 0;    ///< units
  std::vector<std::size_t> members;   ///< positions in the network
  std::vector<std::int64_t> samples;  ///< of a micro-batch, per member; their sum is the micro-batch
  std::int64_t in_flight = 1;         ///< K_p
};

struct AsteroidPlan {
  std::vector<AsteroidStage> stages;
  double round_s = std::numeric_limits<double>::infinity();  ///< round latency as above
  [[nodiscard]] bool found() const { return !stages.empty(); }
};

/// Samples of a micro-batch within a group (Algorithm 1) and the group's pace.
struct Allocation {
  std::vector<std::int64_t> samples;  ///< empty: the group cannot hold the stage
  double forward_s = 0, backward_s = 0;
  [[nodiscard]] bool found() const { return !samples.empty(); }
};

/// (a) Samples in proportion to compute, none above what its memory holds, left-overs again over those with room;
/// (b) one sample at a time from the slowest device to the one that would be fastest with it, while the group's slowest
/// gets faster. Devices without room for a sample take none. Where moments are in shards, those with samples hold them.
[[nodiscard]] Allocation allocate_samples(const AsteroidProblem& problem, std::span<const std::size_t> members,
                                          std::size_t first, std::size_t last, std::int64_t in_flight);

/// Ta of a stage: over its members that have samples.
[[nodiscard]] double all_reduce_s(const AsteroidProblem& problem, const AsteroidStage& stage);
/// Ef = Eb of the step between two stages.
[[nodiscard]] double communication_s(const AsteroidProblem& problem, std::span<const std::size_t> from,
                                     std::span<const std::size_t> to, double bytes_per_sample);

/// One step of a round as seen from its end, so that steps can be put in front one by one. A summary that is nowhere
/// larger than another's is at least as good whatever is put in front.
struct RoundSummary {
  double dominant_s = 0;  ///< E_dm
  double after_s =
      -std::numeric_limits<double>::infinity();  ///< max_s (wait - sum_{i<=s} E_i + all-reduce): dm in front
  double latency_s = -std::numeric_limits<double>::infinity();  ///< round latency of these steps alone
  double before_s = 0;                                          ///< Te of a step just in front, less its own E

  [[nodiscard]] RoundSummary behind(double forward_s, double backward_s, double reduce_s, double micro_batches) const;
  [[nodiscard]] bool covers(const RoundSummary& other) const {
    return dominant_s <= other.dominant_s && after_s <= other.after_s && latency_s <= other.latency_s &&
           before_s <= other.before_s;
  }
};

/// Round latency of a whole plan by the equations above.
[[nodiscard]] double round_latency_s(const AsteroidProblem& problem, const std::vector<AsteroidStage>& stages);

/// Best plan over P, cuts of units and cuts of devices; the devices with least memory may stay unused. Device cuts fall
/// between `blocks` runs of devices (at least as many as devices: everywhere). Algorithm 2's dynamic
/// programme from the last stage to the first keeps every summary that none covers, 32 to a state at most: exact where
/// there are no more.
[[nodiscard]] AsteroidPlan plan_asteroid(const AsteroidProblem& problem, std::size_t blocks);

/// The plan of plan_asteroid() first, then other good ones that the search met, by their round latency.
[[nodiscard]] std::vector<AsteroidPlan> propose_plans(const AsteroidProblem& problem, std::size_t blocks);

/// The same groups with units cut anew so that the slowest step is as fast as possible. Empty when nothing fits.
[[nodiscard]] AsteroidPlan recut_units(const AsteroidProblem& problem,
                                       const std::vector<std::vector<std::size_t>>& groups);

}  // namespace cleave::rivals
