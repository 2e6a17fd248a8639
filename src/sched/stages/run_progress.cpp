// Notes of how far a step is, and forecasts from them.
#include "stages/run_progress.hpp"

#include <algorithm>
#include <vector>

#include "cleave/sched/simulated_fleet.hpp"
#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

constexpr std::int64_t kMarks = 512;  // entries of Course::pace

// A SimulatedFleet numbers its devices without gaps: `there`, with gaps between ids filled by copies that are to be
// removed.
std::vector<fleet::DeviceProfile> without_gaps(std::span<const fleet::DeviceProfile> there) {
  std::vector<fleet::DeviceProfile> all;
  for (const fleet::DeviceProfile& device : there) {
    while (std::ssize(all) < device.id.value) {
      all.push_back(device);
      all.back().id = DeviceId(std::ssize(all) - 1);
    }
    all.push_back(device);
  }
  return all;
}

}  // namespace

void Progress::begin() {
  const std::size_t stages = run_.plan.stages.size();
  course_ = {.first_work = std::vector<Seconds>(stages, Seconds(-1)),
             .last_work = std::vector<Seconds>(stages, Seconds(0)),
             .opened = std::vector<Seconds>(stages, Seconds(0)),
             .passed = std::vector<Seconds>(stages, Seconds(0)),
             .summed = {},
             .chunks = 0,
             .pace = {Seconds(0)},
             .end = Seconds(0)};
  undisturbed_.reset();
}

Seconds Progress::now() const { return run_.fleet.now() - run_.began; }

void Progress::work_sent(std::int32_t s) {
  Seconds& first = course_.first_work[static_cast<std::size_t>(s)];
  if (first.value() < 0) first = now();
}

void Progress::work_done(std::int32_t s) { course_.last_work[static_cast<std::size_t>(s)] = now(); }

void Progress::stage_opened(std::int32_t s) {
  Seconds& opened = course_.opened[static_cast<std::size_t>(s)];
  if (opened.value() == 0) opened = now();
}

void Progress::stage_passed(std::int32_t s) { course_.passed[static_cast<std::size_t>(s)] = now(); }

void Progress::device_summed(std::int32_t id) {
  course_.summed.resize(run_.device.size());
  course_.summed[static_cast<std::size_t>(id)] = now();
}

void Progress::rehearse() {
  if (undisturbed_) return;
  const std::vector<fleet::DeviceProfile>& there = run_.outgrown ? run_.planned_with : run_.at_begin;
  const std::vector<fleet::DeviceProfile> all = without_gaps(there);
  SimulatedFleet same(all, run_.options.stages.server, run_.options.wire);
  for (const fleet::DeviceProfile& one : all) {
    if (!std::ranges::binary_search(there, one.id, {}, &fleet::DeviceProfile::id)) same.remove_device(one.id);
  }
  StageSchedulerOptions how = run_.options;
  how.rehearsal = true;
  StageRun rehearsed(same, run_.graph, run_.plan, how);
  rehearsed.run({});
  undisturbed_ = std::make_unique<Course>(std::move(rehearsed.progress.course_));
  undisturbed_->end = same.now() - rehearsed.began;
}

void Progress::chunk_done() {
  ++course_.chunks;
  const std::int64_t back = run_.passed_twice(run_.top()) ? run_.top() + 1 - run_.lowest
                                                          : run_.top() - run_.lowest;  // stages with a backward pass
  const std::int64_t all = (run_.top() + 1 + back) * run_.batch * run_.chunks;
  while (std::ssize(course_.pace) * all <= kMarks * course_.chunks) course_.pace.push_back(now());
}

Seconds Progress::undisturbed_time() const {
  const std::size_t mark = std::min(course_.pace.size(), undisturbed_->pace.size()) - 1;
  const Seconds since = now() - course_.pace[mark], then = undisturbed_->pace[mark] + since;
  return mark + 1 < undisturbed_->pace.size() ? std::min(then, undisturbed_->pace[mark + 1])
                                              : std::min(then, undisturbed_->end);
}

double Progress::left_of(std::int32_t s) {
  if (!run_.is_open(s) || run_.runs_in_tiles(s)) return 0;
  const bool returns = run_.passed_twice(s) && run_.goes_back();
  std::int64_t forth = 0, back = 0;
  for (std::int64_t q = 0; q < run_.batch; ++q) {
    forth += run_.chunks - run_.visit(run_.forward, s, q).done;
    if (returns) back += run_.chunks - run_.visit(run_.backward, s, q).done;
  }
  const plan::StageCost& cost = run_.at(s).cost;
  return static_cast<double>(forth * cost.forward_result(run_.work.seq).value() +
                             back * cost.backward_result(run_.work.seq).value()) /
         static_cast<double>(run_.chunks);
}

Seconds Progress::time_left(std::int32_t from) {
  double longest = 0;
  for (std::int32_t s = from; s <= run_.top(); ++s) {
    double uplink = 0;
    for (const ActiveReplica& replica : run_.at(s).replicas) uplink += run_.book(replica.device).uplink;
    if (uplink > 0) longest = std::max(longest, left_of(s) / uplink);
  }
  return Seconds(longest);
}

Seconds Progress::passes_in(std::int32_t s) { return passes_in(s, time_left(s)); }

Seconds Progress::passes_in(std::int32_t s, Seconds at_rates) {
  const std::int32_t above = std::min(s + 1, run_.top());
  if (run_.at(above).backward_left == 0 || above < run_.lowest) return Seconds(0);
  return undisturbed_ ? std::max(at_rates, undisturbed_->passed[static_cast<std::size_t>(above)] - undisturbed_time())
                      : at_rates;
}

Seconds Progress::opens_in(std::int32_t s) {
  if (!undisturbed_ || course_.opened[static_cast<std::size_t>(s)].value() > 0) return Seconds(0);
  return std::max(Seconds(0), undisturbed_->opened[static_cast<std::size_t>(s)] - undisturbed_time());
}

Seconds Progress::ends_in() {
  const Seconds planned = undisturbed_ ? undisturbed_->end - undisturbed_time() : run_.plan.forecast - now();
  return std::max(planned, time_left(0));
}

void Progress::weigh_losses() {
  if (run_.losses.records().all().empty()) return;
  rehearse();
  run_.report.recovery = std::max(Seconds(0), run_.report.time - undisturbed_->end);
  for (std::size_t i = 0; i < run_.losses.records().all().size(); ++i) {
    const auto s = static_cast<std::size_t>(run_.losses.stage_of(i));
    run_.losses.records().weigh(i, undisturbed_->last_work[s] - std::max(Seconds(0), undisturbed_->first_work[s]),
                                std::max(Seconds(0), course_.last_work[s] - undisturbed_->last_work[s]));
  }
  const std::vector<Loss>& all = run_.losses.records().all();
  run_.report.losses.insert(run_.report.losses.end(), all.begin(), all.end());
}

}  // namespace cleave::sched::stages
