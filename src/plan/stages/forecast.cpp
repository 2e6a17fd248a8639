// How long a candidate's step is forecast to take (docs/stage_layouts.md, "Planner").
#include <algorithm>
#include <cmath>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

// All constants here are fitted to simulated steps of the fleets of docs/measurements/stages.md.
//
// The chain: sequences pass the slowest stage; before and after it the stages fill and drain, which takes kFillings
// times the way of a first chunk, since chunks wait for each other; the last sums follow, kTails times their time on
// all uplinks. kSharpness: how much a time that is nearly as long as the longest adds to it (longest()). kGaps: factor
// for gaps.
constexpr double kFillings = 4.5, kTails = 1.3, kSharpness = 8, kGaps = 1.03;
// Where the server's interface is the bottleneck, it is idle for this share of the time for filling, draining and sums.
constexpr double kBeside = 0.5;
// The last passage: sums of a whole batch leave when the last sequence has passed. It passes once the processors have
// done all work before it, which includes the sums of sequences that they did not run. A few large stages are therefore
// late, wherever they are. kSent: share of the longest sending time that follows it.
constexpr double kLastFillings = 3.5, kSent = 0.85;
// The same for phases in which sequences pass one way only.
constexpr double kOneWayFillings = 2, kReading = 0.6, kGapsBack = 1.08;
// Enough replicas of a stage have its weights after this factor of their mean time.
constexpr double kLoaded = 1.2;

// A smooth maximum of two times: a little more than the longer one where the other is nearly as long.
double longest(double a, double b) {
  return std::pow(std::pow(a, kSharpness) + std::pow(b, kSharpness), 1 / kSharpness);
}

struct Terms {
  double chain = 0, interface = 0;
  double last = 0;  // when the last sequence has passed (last_passage())
};

// Without preloading, weights are sent when the first chunk comes. They delay the first sequence at every stage, until
// the replica with the quickest downlink has them.
double on_demand(const Problem& problem, const Layout& layout) {
  if (problem.preload) return 0;
  double time = 0;
  for (const StageDraft& draft : layout.stages) {
    double quickest = 0;
    for (const std::size_t i : draft.replicas) quickest = std::max(quickest, problem.down[i]);
    time += in_bytes(draft.cost.weights()) / quickest;
  }
  return time;
}

// Rates of a stage's replicas together.
struct Rates {
  double up = 0, down = 0, flops = 0;
};

Rates rates_of(const Problem& problem, const StageDraft& draft) {
  Rates all;
  for (const std::size_t i : draft.replicas) {
    all.up += problem.up[i];
    all.down += problem.down[i];
    all.flops += problem.flops[i];
  }
  return all;
}

// Seconds that one chunk takes through a stage, on a replica of mean rates.
double filling_of(const StageDraft& draft, const Rates& rates, std::int64_t chunk) {
  const auto count = static_cast<double>(draft.replicas.size());
  return in_bytes(draft.cost.boundary(chunk)) * count * (1 / rates.up + 1 / rates.down) +
         draft.cost.forward(0, chunk).value() * count / rates.flops;
}

Terms terms_of(const Problem& problem, const Layout& layout, bool processors) {
  const StageWork& work = *problem.work;
  double slowest = 0, filling = 0, elements = 0, out = 0, in = 0, sent = 0, uplinks = 0;
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const StageDraft& draft = layout.stages[s];
    const bool kept = is_kept(layout.settings, draft.cost);
    const PassingRate rate(problem, draft.cost, kept);
    const Rates rates = rates_of(problem, draft);
    double passing = 0;
    for (const std::size_t i : draft.replicas) passing += rate.of(i);
    const auto results = in_bytes(draft.cost.sent(work.tokens()));
    slowest = std::max(slowest, results / passing);
    if (processors) slowest = std::max(slowest, stage_flops(work, draft.cost, kept) / rates.flops);
    filling += filling_of(draft, rates, layout.settings.chunk);
    const std::int64_t size = layout.groups[s] == 1 ? size_of(work.wire) : layout.groups[s] * sum_bytes(work.wire);
    elements += draft.cost.gradient_elements();
    sent += draft.cost.gradient_elements() * static_cast<double>(size);
    in += results;
    out += in_bytes(draft.cost.taken_in(work.tokens(), kept)) +
           static_cast<double>(draft.replicas.size()) * in_bytes(draft.cost.weights());
  }
  for (const OwnerShare& owned : layout.owners) {
    const StageDraft& draft = layout.stages[owned.stage];
    const double own = owned.replica ? std::min(1.0, static_cast<double>(layout.groups[owned.stage]) /
                                                         static_cast<double>(draft.replicas.size()))
                                     : 0;
    out += (draft.cost.has_logits() ? 1 : 2) * (1 - own) * in_bytes(draft.cost.boundary(work.tokens())) /
           static_cast<double>(layout.groups[owned.stage]);
  }
  for (const double up : problem.up) uplinks += up;
  // Filling before the first chunk has come up, draining and sums after the last one has.
  const double around = kFillings * filling + kTails * elements * static_cast<double>(size_of(work.wire)) / uplinks;
  const double chain = slowest + around;
  const double interface = std::max(out / problem.nic_out, (in + sent) / problem.nic_in) +
                           kBeside * (kFillings * filling + kTails * sent / uplinks);
  const double last = longest(slowest + kLastFillings * filling,
                              layout.settings.lag * layout.settings.owning + filling + layout.processors_s);
  return {chain, interface, last};
}

}  // namespace

double chain_time(const Problem& problem, const Layout& layout, bool processors) {
  return terms_of(problem, layout, processors).chain;
}

double beside_interface(const Problem& problem, const Layout& layout, double end) {
  return longest(end, terms_of(problem, layout, false).interface);
}

double last_passage(const Problem& problem, const Layout& layout) { return terms_of(problem, layout, false).last; }

double loading_time(const Problem& problem, const StageDraft& draft) {
  const double weights = in_bytes(draft.cost.weights()), count = static_cast<double>(draft.replicas.size());
  double mean = 0, most = 0;
  for (const std::size_t i : draft.replicas) {
    mean += weights / problem.down[i] / count;
    most = std::max(most, weights / problem.down[i]);
  }
  return std::min(most, kLoaded * mean);
}

double forecast_one_way(const Problem& problem, const Layout& layout, bool back) {
  const StageWork& work = *problem.work;
  double slowest = 0, filling = 0, loading = 0, out = 0, in = 0;
  for (const StageDraft& draft : layout.stages) {
    const Rates rates = rates_of(problem, draft);
    const StageCost& cost = draft.cost;
    const double results = in_bytes(back ? cost.backward_result(work.tokens()) : cost.forward_result(work.tokens()));
    const double operands =
        in_bytes(cost.boundary(work.tokens()) + (back ? cost.backward_operand(work.tokens()) : Bytes(0)));
    const Flops of_sequence = back ? cost.way_back(work.seq, false) : cost.forward(0, work.seq);
    const double computed = static_cast<double>(work.batch) * of_sequence.value();
    slowest = std::max({slowest, results / rates.up, operands / rates.down, computed / rates.flops});
    filling += filling_of(draft, rates, layout.settings.chunk);
    loading = std::max(loading, loading_time(problem, draft));
    in += results;
    out += operands + static_cast<double>(draft.replicas.size()) * in_bytes(cost.weights());
  }
  if (!problem.preload && !back) loading = on_demand(problem, layout);
  double passed = loading + slowest + kOneWayFillings * filling;
  if (back) {
    for (const OwnerShare& owned : layout.owners) {
      const double boundaries = 2 * in_bytes(layout.stages[owned.stage].cost.boundary(work.tokens())) /
                                static_cast<double>(layout.groups[owned.stage]);
      out += boundaries * (owned.replica ? 1 - 1 / static_cast<double>(layout.stages[owned.stage].replicas.size()) : 1);
    }
    const double first = loading + filling;  // when sums begin
    passed = std::max(longest(passed, first + layout.processors_s), first + kReading * layout.gradients_s);
    passed += kSent * layout.sending_s;
  }
  return std::max((back ? kGapsBack : 1) * passed, std::max(out / problem.nic_out, in / problem.nic_in));
}

double forecast(const Problem& problem, const Layout& layout, bool processors) {
  const auto [chain, interface, last] = terms_of(problem, layout, processors);
  return on_demand(problem, layout) +
         std::max(kGaps * longest(longest(chain, layout.gradients_s), interface), last + kSent * layout.sending_s);
}

}  // namespace cleave::plan::stages
