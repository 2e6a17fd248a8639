// Progress: how far a step is, and how long the rest of it will take.
//
// Until something is lost, the plan and the rates of the replicas tell. From the first loss on, the same plan is run
// once more, on a SimulatedFleet of the devices that were there when the step began: stages overlap, so only a whole
// step tells when its sequences would have passed. Afterwards that says what losses cost.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cleave/base/units.hpp"

namespace cleave::sched::stages {

struct StageRun;

/// When what of a step was done, from its beginning.
struct Course {
  std::vector<Seconds> first_work, last_work;  ///< of each stage
  std::vector<Seconds> opened;                 ///< of each stage: the first sequence's X and dY are there
  std::vector<Seconds> passed;                 ///< of each stage: all sequences are through
  std::vector<Seconds> summed;                 ///< of each device, by id: so is all that it sums; 0: it owns nothing
  std::int64_t chunks = 0;                     ///< results that are back
  std::vector<Seconds> pace;                   ///< when equal shares of them were back
  Seconds end;
};

class Progress {
 public:
  explicit Progress(StageRun& run) : run_(run) {}

  void begin();

  // What happens to a stage, or on a device, is noted as it happens.
  void work_sent(std::int32_t s);
  void work_done(std::int32_t s);
  void stage_opened(std::int32_t s);
  void stage_passed(std::int32_t s);
  void device_summed(std::int32_t id);
  void chunk_done();

  /// Runs the step as it would be without losses, once.
  void rehearse();
  /// That step; null until it was run.
  [[nodiscard]] const Course* undisturbed() const { return undisturbed_.get(); }
  /// The time at which that step would be as far as this one is now.
  [[nodiscard]] Seconds undisturbed_time() const;

  /// Bytes of results that a stage's replicas still owe.
  double left_of(std::int32_t s);
  /// For how long a stage and those above have sequences to send, at the rates of the replicas that are left.
  Seconds time_left(std::int32_t from);
  /// From now, until the first, or the last, sequence's X and dY at a stage are there; until the step ends.
  Seconds opens_in(std::int32_t s);
  Seconds passes_in(std::int32_t s);
  Seconds passes_in(std::int32_t s, Seconds at_rates);  ///< at_rates: time_left(s)
  Seconds ends_in();

  /// The report of a step that has ended tells what losses cost, beside the same step without them.
  void weigh_losses();

 private:
  [[nodiscard]] Seconds now() const;

  StageRun& run_;
  Course course_;
  std::unique_ptr<Course> undisturbed_;
};

}  // namespace cleave::sched::stages
