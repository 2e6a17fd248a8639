// Which owner will be the last, which sequences it can give away, and whether others would be done sooner.
#include "stages/run_relief.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kReliefEvery = 0.01;  // share of a step
// How late an owner may be before it is relieved, as a share of a step, for each moment at which something was lost.
// Relief has a cost: partial sums are larger, and with more owners there is more to lose.
constexpr double kLate = 0.02, kMostLate = 0.05;
constexpr double kReliefInTime = 1.03;     // others should be done within this x the time left
constexpr double kGain = 0.5;              // share of late_by() by which others must be done sooner
constexpr int kMostReliefs = 4;            // owners relieved at a time
constexpr std::int32_t kMostHandedOn = 1;  // times that the same sums are taken from a late owner
constexpr std::int64_t kNext = 2;          // sequences that an owner keeps in any case: they are on their way

}  // namespace

bool Relief::is_due() const { return run_.progress.undisturbed() && run_.fleet.now() >= next_; }

Seconds Relief::late_by() const {
  return std::min(kMostLate, kLate * static_cast<double>(run_.losses.moments())) * run_.progress.undisturbed()->end;
}

double Relief::due_in() {
  double due = run_.progress.ends_in().value();
  for (const OwnerState& of : run_.owner) {
    if (!of.closed && !of.lost && of.left > 0) due = std::max(due, (of.in_by - run_.fleet.now()).value());
  }
  return due;
}

Relief::Busy Relief::stood_in_after(const OwnerState& of) {
  const DeviceBook& on = run_.book(of.device);
  Busy after;
  const auto add = [&](const OwnerState& its) {
    after.reads += static_cast<double>(its.cost.operands.value()) / on.downlink;
    after.computes += its.cost.alone.value() / on.compute;
  };
  bool several = false;
  for (const OwnerState& its : run_.owner) {
    if (its.device != of.device || its.rank <= of.rank || its.closed || its.lost || its.left == 0) continue;
    several = true;
    after.sums += static_cast<double>(its.sums.value()) / on.uplink;
  }
  if (!several) return after;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand != Errand::sum || !purpose.reads || purpose.device != of.device) return;
    if (const OwnerState& its = run_.owner[static_cast<std::size_t>(purpose.owner)]; its.rank > of.rank) add(its);
  });
  std::set<std::pair<std::int32_t, std::int64_t>> read;
  for (const DueSum& due : on.due) {
    if (read.emplace(due.stage, due.sequence).second && due.rank > of.rank)
      add(run_.owner[static_cast<std::size_t>(due.owner)]);
  }
  return after;
}

std::optional<Relief::LateOwner> Relief::latest_owner(std::span<const Candidate> all) {
  std::optional<LateOwner> latest;
  const double left = due_in();
  std::vector<double> passes;
  for (std::int32_t s = 0; s <= run_.top(); ++s) passes.push_back(run_.progress.passes_in(s).value());
  for (std::size_t i = 0; i < run_.owner.size(); ++i) {
    const OwnerState& of = run_.owner[i];
    if (of.closed || of.lost || of.left == 0 || of.handed_on >= kMostHandedOn) continue;
    if (of.device == kServer || !run_.book(of.device).present) continue;
    const Candidate& on = *std::ranges::lower_bound(all, of.device, {}, &Candidate::device);
    // Operands come in the gaps that passing sequences leave on the downlink; when these have passed, they have all of
    // it. Work for the device's roles as a stand-in comes after its planned work.
    const double gaps = on.visits_left > 0 ? 1 - std::min(0.99, on.down_visits / on.visits_left) : 1;
    const double passed = passes[static_cast<std::size_t>(of.stage)];
    const auto read_when = [&](double reads, double computes) {
      return std::max({std::min(reads / gaps, reads + on.down_visits), computes, passed});
    };
    const double reads = on.down_busy - on.down_visits;
    const double planned = std::max(read_when(reads - on.down_again, on.compute_busy - on.compute_again),
                                    on.visits_left > 0 ? 0 : on.up_busy) +
                           on.sums_busy - on.sums_again;
    const Busy after = of.stands_in ? stood_in_after(of) : Busy{};
    const double sums_again = on.sums_again - after.sums;
    const double end =
        of.stands_in ? std::max(read_when(reads - after.reads, on.compute_busy - after.computes), planned) + sums_again
                     : planned;
    if (end < left + late_by().value() || (latest && end < latest->end)) continue;
    latest = LateOwner{.index = static_cast<std::int32_t>(i),
                       .end = end,
                       .sums = static_cast<double>(of.sums.value()) / on.uplink,
                       .all_sums = of.stands_in ? sums_again : on.sums_busy - on.sums_again,
                       .loading = run_.candidates.loading_left(of),
                       .up_busy = on.up_busy,
                       .pace = static_cast<double>(of.cost.operands.value()) / (on.downlink * gaps)};
  }
  return latest;
}

bool Relief::is_alone(const Purpose& sum) const {
  const auto with = run_.shared_sums.find(sum.tasklet.value);
  return with == run_.shared_sums.end() || with->second.owners.empty();
}

std::vector<std::int64_t> Relief::spare_of(std::int32_t index, std::int64_t keeps) {
  const OwnerState& of = run_.owner_at(index);
  std::vector<bool> pending(static_cast<std::size_t>(run_.batch), false);
  run_.purposes.for_each([&](const Purpose& purpose) {
    // What its device ran, and has, it sums itself: others would have to be sent that.
    if (purpose.errand == Errand::sum && purpose.owner == index && is_alone(purpose) && !purpose.of_visited)
      pending[static_cast<std::size_t>(purpose.sequence)] = true;
  });
  for (const DueSum& due : run_.device[static_cast<std::size_t>(of.device)].due) {
    if (due.owner == index) pending[static_cast<std::size_t>(due.sequence)] = true;
  }
  std::vector<std::int64_t> spare;
  for (const std::int64_t q : of.sequences) {
    const auto i = static_cast<std::size_t>(q);
    if (of.seen[i] && !pending[i]) continue;  // summed
    if (--keeps < 0) spare.push_back(q);
  }
  return spare;
}

void Relief::forget_sums(std::int32_t index, const std::vector<bool>& of_these) {
  std::vector<TaskletId> gone;
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand == Errand::sum && purpose.owner == index && is_alone(purpose) &&
        of_these[static_cast<std::size_t>(purpose.sequence)])
      gone.push_back(purpose.tasklet);
  });
  for (const TaskletId tasklet : gone) {
    const auto with = run_.shared_sums.find(tasklet.value);
    if (with != run_.shared_sums.end()) {
      if (with->second.again) --run_.book(run_.owner_at(index).device).summing;
      run_.shared_sums.erase(with);
    }
    const Purpose sum = *run_.purposes.find(tasklet);
    run_.remove_purpose(tasklet);
    run_.fleet.forget(tasklet);
    if (sum.of_visited) run_.visited_is_summed(sum);
  }
  std::erase_if(run_.book(run_.owner_at(index).device).due, [&](const DueSum& due) {
    return due.owner == index && of_these[static_cast<std::size_t>(due.sequence)];
  });
  run_.send_due(run_.owner_at(index).device);
}

bool Relief::relieve_one() {
  std::vector<Candidate> all = run_.candidates.all();
  const std::optional<LateOwner> late = latest_owner(all);
  if (!late) return false;
  const std::optional<Handover> handover = best_handover(*late, std::move(all));
  if (!handover) return false;
  hand_over(late->index, *handover);
  return true;
}

std::optional<Relief::Handover> Relief::best_handover(const LateOwner& late, std::vector<Candidate> all) {
  const std::int32_t index = late.index;
  const OwnerState& of = run_.owner_at(index);
  const std::int32_t s = of.stage, id = of.device;
  const double left = due_in();
  std::erase_if(all, [&](const Candidate& one) { return one.device == id; });
  const SharedInterface interface = run_.candidates.interface_of(all);
  all = run_.candidates.with_server(std::move(all), {});
  const double target = late.end - kGain * late_by().value();
  // The owner keeps as many sequences as it can sum in time; none, if its partial sums would be late in any case.
  const double grows =
      of.partial ? 1
                 : static_cast<double>(plan::sum_bytes(run_.work.wire)) / static_cast<double>(size_of(run_.work.wire));
  const double sending = late.all_sums + (grows - 1) * late.sums;
  const auto in_time = static_cast<std::int64_t>(std::max(0.0, (left - sending - late.loading) / late.pace));
  const auto ready = [&](const std::vector<std::int64_t>& its) {
    return std::ranges::all_of(its, [&](std::int64_t q) { return run_.has_gradient(s, q); })
               ? Seconds(0)
               : run_.progress.passes_in(s);
  };
  const auto shared = [&](const std::vector<std::int64_t>& its, bool partial) {
    const LostSums lost{.stage = s,
                        .cost = &run_.at(s).cost,
                        .slices = of.slices,
                        .sequences = std::ssize(its),
                        .partial = partial,
                        .ready = ready(its),
                        .opens = run_.progress.opens_in(s),
                        .readers = run_.recovery.readers_of(s, its, id)};
    return share_out(run_.work, std::span(&lost, 1), all, Seconds(kReliefInTime * left), Seconds(late.end),
                     run_.plan.chunk, interface);
  };
  const std::vector<std::int64_t> spare = spare_of(index, std::max(kNext, in_time));
  const double own_read = late.loading + std::max(static_cast<double>(std::max(kNext, in_time)) * late.pace,
                                                  run_.progress.passes_in(s).value());
  const double own_end = std::max(own_read, late.up_busy) + sending;
  SharedOut some, all_of_it = shared(of.sequences, of.partial);
  double some_end = std::numeric_limits<double>::infinity(), all_of_it_end = some_end;
  if (!all_of_it.parts.front().empty()) all_of_it_end = all_of_it.by.value();
  if (!spare.empty() && std::ssize(spare) < std::ssize(of.sequences)) {
    some = shared(spare, true);
    if (!some.parts.front().empty()) some_end = std::max(own_end, some.by.value());
  }
  if (std::min(some_end, all_of_it_end) > target) return std::nullopt;
  if (some_end <= all_of_it_end) return Handover{.keeps = true, .sequences = spare, .shared = std::move(some)};
  return Handover{.keeps = false, .sequences = of.sequences, .shared = std::move(all_of_it)};
}

void Relief::hand_over(std::int32_t index, const Handover& handover) {
  OwnerState& of = run_.owner_at(index);
  const std::int32_t s = of.stage;
  const auto& [keeps, its, shared] = handover;
  std::vector<bool> gone(static_cast<std::size_t>(run_.batch), false);
  for (const std::int64_t q : its) gone[static_cast<std::size_t>(q)] = true;
  forget_sums(index, gone);
  const bool partial = keeps || of.partial;
  run_.watchers.stop(index);
  if (keeps) {
    for (const std::int64_t q : its) of.seen[static_cast<std::size_t>(q)] = true;
    std::erase_if(of.sequences, [&](std::int64_t q) { return gone[static_cast<std::size_t>(q)]; });
    of.left -= std::ssize(its);
    of.partial = true;
    of.sums = Bytes(static_cast<std::int64_t>(of.elements) * plan::sum_bytes(run_.work.wire));
  } else {
    of.closed = true;
    run_.leave_role(of);
  }
  ++of.handed_on;
  run_.recovery.deal_out(s, partial, its, shared.parts.front(), kNoLoss, run_.fleet.now() + shared.by, of.handed_on);
  // `of` is not used any more: deal_out() may have moved the owners in memory.
  if (!keeps) {
    --run_.at(s).gradients_left;
  } else if (run_.owner_at(index).left == 0) {
    run_.send_sums(index);
  }
}

void Relief::relieve() {
  next_ = run_.fleet.now() + run_.progress.undisturbed()->end * kReliefEvery;
  // While sequences pass, forecasts are too uncertain: sequences taken from one owner would be late at another.
  if (run_.at(run_.lowest).backward_left > 0) return;
  for (int k = 0; k < kMostReliefs && relieve_one(); ++k) {}
  run_.look_at_pairs();
}

}  // namespace cleave::sched::stages
