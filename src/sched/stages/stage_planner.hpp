// StagePlanner: the quickest layout in stages for some devices. Candidates are compared by forecasts; where these are
// not precise enough, by rehearsals: the step is simulated on devices that do not leave, and whose messages are late by
// the mean of their jitter. The quickest layout is then improved by exchanges of devices (exchanges.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "cleave/sched/stage_scheduler.hpp"

namespace cleave::sched::stages {

class StagePlanner {
 public:
  /// Requires: `graph` has one row group, and outlives the planner.
  StagePlanner(const model::StepGraph& graph, StageSchedulerOptions options);

  /// How much is rehearsed.
  struct Effort {
    /// Most passages in all rehearsals together. A passage is one chunk through one stage, forward or backward.
    std::int64_t passages = std::numeric_limits<std::int64_t>::max();
    /// The candidate most like this plan is rehearsed early: the plan was the quickest of almost the same devices. May
    /// be null.
    const plan::StagePlan* like = nullptr;

    /// For planning between two steps, the first of which had this layout: takes a twentieth of a step at most.
    [[nodiscard]] static Effort after(const plan::StagePlan& plan);
  };
  struct Found {
    plan::StagePlan plan;
    std::optional<Seconds> time;  ///< of its rehearsal; none where its forecast was enough
  };
  /// A simulated step that may be stopped early.
  struct Rehearsal {
    std::optional<Seconds> time;  ///< none where it was stopped, since it took longer than its limit
    std::int64_t passages = 0;    ///< that it took: Effort::passages
    std::vector<Usage> usage;     ///< of each device
    Seconds before;               ///< when it was last asked whether it may go on, and might
    /// It would have come out the same with this limit from its beginning.
    [[nodiscard]] bool holds_for(Seconds limit) const { return before <= limit && (!time || *time <= limit); }
  };
  /// None where nothing fits. A function of its arguments, the graph and the options.
  [[nodiscard]] std::optional<Found> quickest(std::vector<fleet::DeviceProfile> devices, Effort effort) const;
  /// The step's time in a layout; none where it takes longer than `limit`.
  /// Requires: devices are numbered from 0 without gaps, as in the plan.
  [[nodiscard]] std::optional<Seconds> rehearse(const plan::StagePlan& plan,
                                                const std::vector<fleet::DeviceProfile>& devices, Seconds limit) const;

 private:
  using Limit = std::atomic<double>;  ///< seconds; may be lowered while rehearsals are under way
  // Ends early, with any result, once `stop` is set.
  [[nodiscard]] Rehearsal perform(const plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices,
                                  const Limit& limit, const std::atomic<bool>& stop) const;
  // Passages of a whole step in a layout.
  [[nodiscard]] std::int64_t passages(const plan::StagePlan& plan) const;
  // Passages that rehearsals of a fleet may take, if effort allows them all; `first`: the first of its candidates.
  [[nodiscard]] std::int64_t most_passages(const plan::StagePlan& first, const plan::StageFleet& fleet) const;
  // Exchanges pairs of devices in a layout, as long as the step becomes quicker and passages are left.
  void exchange(plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices, Rehearsal last,
                std::int64_t passages) const;
  // The quickest layout so far, and its rehearsal.
  struct Best {
    plan::StagePlan plan;
    std::vector<fleet::DeviceProfile> devices;  // of its fleet: the plan has their indices as ids
    Rehearsal rehearsal;
  };
  // Where the server's interface is the bottleneck: fleets that leave devices out, and the one of all devices if it may
  // be the quickest.
  void rehearse_smaller_and_all(std::span<const plan::StageFleet> fewer, std::span<const plan::StageFleet> all,
                                Effort effort, std::optional<Best>& best) const;
  // Rehearses candidates for some fleets, in order of their forecasts, while they may be quicker than the best one so
  // far; nothing if there is only one candidate. `own_plans`: of fleets that are not small, only the plan of each.
  void rehearse_fleets(std::span<const plan::StageFleet> fleets, bool own_plans, const Effort& effort,
                       std::optional<Best>& best) const;

  const model::StepGraph& graph_;
  StageSchedulerOptions options_;
  plan::StageWork work_;
};

}  // namespace cleave::sched::stages
