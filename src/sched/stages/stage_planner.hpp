// StagePlanner: the quickest layout in stages for some devices, by forecasts, and where those do not settle it by
// rehearsals: the step is simulated on devices that neither leave nor jitter. The quickest layout is then bettered by
// exchanges of devices (exchanges.hpp).
#pragma once

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
  /// `graph`: one row group; it must outlive the planner.
  StagePlanner(const model::StepGraph& graph, StageSchedulerOptions options);

  /// How much is rehearsed.
  struct Effort {
    /// Rehearsals end when chunks have passed so many stages, however many they are allowed.
    std::int64_t passages = std::numeric_limits<std::int64_t>::max();
    /// What is most like this one comes early: it was the quickest of much the same devices. May be null.
    const plan::StagePlan* like = nullptr;

    /// After a step in this layout: about a twentieth of the next one at most.
    [[nodiscard]] static Effort after(const plan::StagePlan& plan);
  };
  struct Found {
    plan::StagePlan plan;
    std::optional<Seconds> time;  ///< of its rehearsal; none where its forecast was enough
  };
  /// None where nothing fits. A function of its arguments, the graph and the options.
  [[nodiscard]] std::optional<Found> quickest(std::vector<fleet::DeviceProfile> devices, Effort effort) const;
  /// The step's time in a layout; none where it takes longer than `limit`.
  /// Requires: devices are numbered from 0 without gaps, as in the plan.
  [[nodiscard]] std::optional<Seconds> rehearse(const plan::StagePlan& plan,
                                                const std::vector<fleet::DeviceProfile>& devices, Seconds limit) const;

 private:
  struct Rehearsal {
    std::optional<Seconds> time;  ///< none where it was stopped, since it took longer than `limit`
    std::int64_t passages = 0;    ///< of chunks through stages, each way
    std::vector<Usage> usage;     ///< of each device
  };
  [[nodiscard]] Rehearsal perform(const plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices,
                                  Seconds limit) const;
  [[nodiscard]] std::int64_t passages(const plan::StagePlan& plan) const;
  [[nodiscard]] std::int64_t most_passages(const plan::StagePlan& first, const plan::StageFleet& fleet) const;
  // Pairs of devices take each other's part in a layout, as long as the step becomes quicker and passages are left.
  void exchange(plan::StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices, Rehearsal last,
                std::int64_t passages) const;
  // The quickest layout so far, and the rehearsal of it.
  struct Best {
    plan::StagePlan plan;
    std::vector<fleet::DeviceProfile> devices;  // of its fleet, by the numbers that the plan has for them
    Rehearsal rehearsal;
  };
  // Where the server's interface binds: fleets that leave devices out, and that of all, if it is likely.
  void rehearse_smaller_and_all(std::span<const plan::StageFleet> fewer, std::span<const plan::StageFleet> all,
                                Effort effort, std::optional<Best>& best) const;
  // Candidates for some fleets, by forecast, while they may be quicker than the best one so far; none where nothing is
  // left to be compared. `own_plans`: of larger fleets nothing else, as where the server's interface binds.
  void rehearse_fleets(std::span<const plan::StageFleet> fleets, bool own_plans, const Effort& effort,
                       std::optional<Best>& best) const;

  const model::StepGraph& graph_;
  StageSchedulerOptions options_;
  plan::StageWork work_;
};

}  // namespace cleave::sched::stages
