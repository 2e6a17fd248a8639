// Progress: how far a step is, and how long the rest of it will take.
//
// Until something is lost, the plan's forecast and the rates of the replicas tell. At the first loss the same plan is
// rehearsed: run on a SimulatedFleet of the devices that were there when the step began. Stages overlap, so only such a
// run tells when sequences would have passed. After the step, the difference to it is what losses have cost.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cleave/base/units.hpp"

namespace cleave::sched::stages {

struct StageRun;

/// Times at which parts of a step were done, from its beginning.
struct Course {
  std::vector<Seconds> first_work, last_work;  ///< of each stage: first tasklet sent, last one answered
  std::vector<Seconds> opened;                 ///< of each stage: the first sequence's X and dY are at the server
  std::vector<Seconds> passed;                 ///< of each stage: all sequences have passed
  std::vector<Seconds> summed;                 ///< of each device, by id: its last sum was made; 0: it owns nothing
  std::int64_t chunks = 0;                     ///< chunks whose result is back
  std::vector<Seconds> pace;                   ///< when each of equal shares of all chunks was back
  Seconds end;
};

class Progress {
 public:
  explicit Progress(StageRun& run) : run_(run) {}

  void begin();

  // Notes of what happens to a stage, or on a device, at the time of the call.
  void work_sent(std::int32_t s);
  void work_done(std::int32_t s);
  void stage_opened(std::int32_t s);
  void stage_passed(std::int32_t s);
  void device_summed(std::int32_t id);
  void chunk_done();

  /// Simulates the step as it would have been without losses, unless that was done before.
  void rehearse();
  /// The course of that step; null before rehearse().
  [[nodiscard]] const Course* undisturbed() const { return undisturbed_.get(); }
  /// The time at which that step was as far as this one is now. Requires: rehearse().
  [[nodiscard]] Seconds undisturbed_time() const;

  /// Bytes of results that a stage's replicas still have to send in the open round.
  double left_of(std::int32_t s);
  /// For how long the replicas of stage `from` or above still send results, at the uplinks of those that are left.
  Seconds time_left(std::int32_t from);
  /// Forecasts from now: until X and dY of a stage's first sequence are at the server, until those of its last one are,
  /// until the step ends.
  Seconds opens_in(std::int32_t s);
  Seconds passes_in(std::int32_t s);
  Seconds passes_in(std::int32_t s, Seconds at_rates);  ///< at_rates: time_left(s)
  Seconds ends_in();

  /// After the step: reports what losses have cost, against the same step without them.
  void weigh_losses();

 private:
  [[nodiscard]] Seconds now() const;

  StageRun& run_;
  Course course_;
  std::unique_ptr<Course> undisturbed_;
};

}  // namespace cleave::sched::stages
