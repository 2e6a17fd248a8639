// In a simulated step in stages that loses nobody nothing is computed before what it needs is on its device: weights,
// earlier chunks, the forward pass recomputed, sums of all sequences.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "drawn_stages.hpp"
#include "quiet_observer.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

std::string_view name_of(Errand errand) {
  constexpr std::string_view kNames[] = {"none",   "weights", "forward",   "recompute", "backward",
                                         "replay", "sum",     "send_sums", "witness",   "witness_sums"};
  return kNames[static_cast<std::size_t>(errand)];
}

class Causes final : public QuietObserver {
 public:
  // `first_part`: the stage of the first part of a head in parts. There a backward pass may overtake X on a link
  // (docs/limits.md).
  explicit Causes(std::int32_t first_part) : first_part_(first_part) {}
  std::int64_t looked_at = 0, with_weights = 0;
  std::map<std::string, std::int64_t> wrong;  // how often, by what came before what

  [[nodiscard]] bool wants_spans() const override { return true; }

  void submitted(const Tasklet& tasklet) override {
    const StageItem& item = tasklet.item;
    const std::int64_t device = tasklet.piece.device.value;
    Task& task = tasks_[tasklet.id];
    task.errand = tasklet.errand;
    task.panels = tasklet.run.panels;
    task.down = tasklet.run.down();
    if (tasklet.piece.device == kServerDevice) return;
    const std::pair<std::int64_t, std::int32_t> place{device, tasklet.stage};
    const auto needs = [&](TaskletId before) {
      if (before.valid()) task.needs.push_back(before);
    };
    const auto needs_replica = [&] {
      if (const auto found = replicas_.find(place); found != replicas_.end()) needs(found->second);
    };
    switch (tasklet.errand) {
      case Errand::weights:
        if (!item.weights) return;
        (item.owner < 0 ? replicas_[place] : owners_[item.owner]) = tasklet.id;
        return;
      case Errand::forward:
      case Errand::backward:
      case Errand::replay: {
        needs_replica();
        const bool back = tasklet.errand == Errand::backward || item.back;
        TaskletId& last = visits_[{device, tasklet.stage, item.sequence, back}];
        if (!item.begins) needs(last);
        if (item.begins && back && !item.keeps && tasklet.stage < first_part_)
          needs(recomputed_[{device, tasklet.stage, item.sequence}]);
        if (item.begins && back && item.keeps) needs(visits_[{device, tasklet.stage, item.sequence, false}]);
        last = tasklet.id;
        return;
      }
      case Errand::recompute:
        needs_replica();
        recomputed_[{device, tasklet.stage, item.sequence}] = tasklet.id;
        return;
      case Errand::sum:
        if (tasklet.run.down().value() > 0) {
          const auto own = owners_.find(item.owner);
          if (own != owners_.end()) needs(own->second);
          if (own == owners_.end()) needs_replica();
        } else {
          const auto back = visits_.find({device, tasklet.stage, item.sequence, true});
          needs(back != visits_.end() ? back->second : visits_[{device, tasklet.stage, item.sequence, false}]);
        }
        sums_[item.owner].push_back(tasklet.id);
        return;
      case Errand::send_sums: task.needs = sums_[item.owner]; return;
      case Errand::witness: needs_replica(); return;
      case Errand::witness_sums:
      case Errand::none: return;
    }
  }

  void span(const Span& span) override {
    const auto found = tasks_.find(span.tasklet);
    if (found == tasks_.end()) return;
    Task& task = found->second;
    if (span.resource == Resource::down) task.came += span.bytes;
    if (span.resource != Resource::compute || ++task.computed > 1) return;
    for (const TaskletId before : task.needs) {
      const auto needed = tasks_.find(before);
      if (needed == tasks_.end()) continue;  // lost, or not wanted any more
      const Task& of = needed->second;
      ++looked_at;
      const bool weights = of.errand == Errand::weights;
      with_weights += weights ? 1 : 0;
      if (weights ? of.came == of.down : of.computed == of.panels) continue;
      ++wrong[std::string(name_of(task.errand)) + " before " + std::string(name_of(of.errand))];
    }
  }
  void settled(TaskletId tasklet, Seconds /*at*/, bool lost) override {
    if (lost) tasks_.erase(tasklet);
  }
  void changed(DeviceId device, DeviceChange change, Seconds /*at*/, double /*factor*/) override {
    if (change != DeviceChange::left) return;
    std::erase_if(replicas_, [&](const auto& of) { return of.first.first == device.value; });
    std::erase_if(visits_, [&](const auto& of) { return std::get<0>(of.first) == device.value; });
    std::erase_if(recomputed_, [&](const auto& of) { return std::get<0>(of.first) == device.value; });
  }

 private:
  struct Task {
    Errand errand = Errand::none;
    std::int64_t panels = 0, computed = 0;
    Bytes down, came;
    std::vector<TaskletId> needs;
  };
  std::int32_t first_part_;
  std::map<TaskletId, Task> tasks_;
  std::map<std::pair<std::int64_t, std::int32_t>, TaskletId> replicas_;                     // device, stage
  std::map<std::int32_t, TaskletId> owners_;                                                // their own weights
  std::map<std::tuple<std::int64_t, std::int32_t, std::int64_t, bool>, TaskletId> visits_;  // last chunk
  std::map<std::tuple<std::int64_t, std::int32_t, std::int64_t>, TaskletId> recomputed_;
  std::map<std::int32_t, std::vector<TaskletId>> sums_;
};

TEST(StageCauses, ComeBeforeWhatNeedsThem) {
  std::int64_t looked_at = 0, with_weights = 0;
  testing_support::expect_of_drawn("CLEAVE_STAGE_CAUSES", all_or_few(200, 20), 2, [&](std::uint64_t seed) {
    const std::optional<DrawnStages> drawn = StageDraw(seed).stages();
    if (!drawn) return false;
    SCOPED_TRACE(testing::Message() << "step " << seed);
    SimulatedFleet fleet(drawn->devices, drawn->options.stages.server, drawn->options.wire);
    const auto stages = static_cast<std::int32_t>(drawn->plan.stages.size());
    const auto parts = static_cast<std::int32_t>(drawn->plan.head_parts);
    Causes causes(parts > 1 ? stages - parts : stages);
    fleet.set_observer(&causes);
    StageScheduler(fleet, drawn->graph, drawn->plan, drawn->options).run();
    looked_at += causes.looked_at;
    with_weights += causes.with_weights;
    for (const auto& [kind, count] : causes.wrong) ADD_FAILURE() << kind << ", " << count << " times";
    return true;
  });
  EXPECT_GT(with_weights, 1000);
  EXPECT_GT(looked_at, 10 * with_weights / 9);
}

}  // namespace
}  // namespace cleave::sched
