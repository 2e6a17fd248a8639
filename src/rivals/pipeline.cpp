// The event loop of a pipeline, and integer shares.
#include "pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <queue>

#include "cleave/base/error.hpp"
#include "pipeline_events.hpp"

namespace cleave::rivals {

namespace {

struct Entry {
  double at_s = 0;
  std::int64_t sequence = 0;
  PipelineEvent what = PipelineEvent::forward_ready;
  std::size_t stage = 0, micro_batch = 0;
  bool backward = false;
  bool operator>(const Entry& other) const {
    return at_s != other.at_s ? at_s > other.at_s : sequence > other.sequence;
  }
};

struct Sending {
  std::size_t micro_batch = 0;
  bool backward = false;
};

struct State {
  std::deque<std::size_t> forward_ready, backward_ready;
  std::deque<Sending> outbox;
  bool computing = false, sending = false;
  double downlink_free_s = 0;
  std::int64_t in_flight = 0;
};

class Run {
 public:
  Run(std::span<const Stage> stages, std::span<const std::int64_t> sizes)
      : stages_(stages), sizes_(sizes), states_(stages.size()), times_(stages.size()) {
    for (std::size_t m = 0; m < sizes.size(); ++m) states_[0].forward_ready.push_back(m);
  }

  std::vector<StageTimes> finish() {
    compute(0);
    while (!agenda_.empty()) {
      const Entry entry = agenda_.top();
      agenda_.pop();
      now_s_ = entry.at_s;
      serve(entry);
    }
    return std::move(times_);
  }

 private:
  void push(Entry entry) {
    entry.sequence = sequence_++;
    agenda_.push(entry);
  }

  void serve(const Entry& entry) {
    State& state = states_[entry.stage];
    switch (entry.what) {
      case PipelineEvent::forward_ready: state.forward_ready.push_back(entry.micro_batch); break;
      case PipelineEvent::backward_ready: state.backward_ready.push_back(entry.micro_batch); break;
      case PipelineEvent::computed: {
        state.computing = false;
        times_[entry.stage].end_s = times_[entry.stage].quiet_s = now_s_;
        const bool last = entry.stage + 1 == stages_.size();
        if (entry.backward) {
          --state.in_flight;
          if (entry.stage > 0) state.outbox.push_back({entry.micro_batch, true});
        } else if (last) {
          state.backward_ready.push_back(entry.micro_batch);
        } else {
          state.outbox.push_back({entry.micro_batch, false});
        }
        break;
      }
      case PipelineEvent::uplink_free: state.sending = false; break;
    }
    compute(entry.stage);
    send(entry.stage);
  }

  void compute(std::size_t p) {
    State& state = states_[p];
    if (state.computing) return;
    const bool backward = !state.backward_ready.empty();
    if (!backward && (state.forward_ready.empty() || state.in_flight >= stages_[p].in_flight)) return;
    std::deque<std::size_t>& queue = backward ? state.backward_ready : state.forward_ready;
    const std::size_t m = queue.front();
    queue.pop_front();
    if (!backward) times_[p].most_in_flight = std::max(times_[p].most_in_flight, ++state.in_flight);
    const double time_s = static_cast<double>(sizes_[m]) * (backward ? stages_[p].backward_s : stages_[p].forward_s);
    times_[p].compute_s += time_s;
    state.computing = true;
    push(
        {.at_s = now_s_ + time_s, .what = PipelineEvent::computed, .stage = p, .micro_batch = m, .backward = backward});
  }

  void send(std::size_t p) {
    State& state = states_[p];
    if (state.sending || state.outbox.empty()) return;
    const Sending job = state.outbox.front();
    state.outbox.pop_front();
    const StageHop& hop = job.backward ? stages_[p].previous : stages_[p].next;
    const std::size_t to = job.backward ? p - 1 : p + 1;
    const auto size = static_cast<double>(sizes_[job.micro_batch]);
    const double send_s = hop.send_fixed_s + size * hop.send_s, receive_s = hop.receive_fixed_s + size * hop.receive_s;
    const double start_s = std::max(now_s_, states_[to].downlink_free_s);
    states_[to].downlink_free_s = start_s + receive_s;
    const double through_s = std::max(now_s_ + send_s, start_s + receive_s);
    times_[p].up_s += send_s;
    times_[to].down_s += receive_s;
    times_[p].quiet_s = std::max(times_[p].quiet_s, now_s_ + send_s);
    state.sending = true;
    push({.at_s = now_s_ + send_s, .what = PipelineEvent::uplink_free, .stage = p});
    push({.at_s = through_s + hop.latency_s,
          .what = job.backward ? PipelineEvent::backward_ready : PipelineEvent::forward_ready,
          .stage = to,
          .micro_batch = job.micro_batch});
  }

  std::span<const Stage> stages_;
  std::span<const std::int64_t> sizes_;
  std::vector<State> states_;
  std::vector<StageTimes> times_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> agenda_;
  std::int64_t sequence_ = 0;
  double now_s_ = 0;
};

}  // namespace

std::vector<StageTimes> run_pipeline(std::span<const Stage> stages, std::span<const std::int64_t> micro_batches) {
  CLEAVE_ASSERT(!stages.empty() && !micro_batches.empty(), "{} stages, {} micro-batches", stages.size(),
                micro_batches.size());
  return Run(stages, micro_batches).finish();
}

std::vector<std::int64_t> split_batch(std::int64_t sequences, std::int64_t size) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(sequences / size), size);
  if (sequences % size > 0) parts.push_back(sequences % size);
  return parts;
}

std::vector<std::int64_t> apportion(std::int64_t total, std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> shares;
  std::vector<double> remainders;
  std::int64_t given = 0;
  for (const double weight : weights) {
    const double exact = static_cast<double>(total) * weight / sum;
    shares.push_back(static_cast<std::int64_t>(std::floor(exact)));
    remainders.push_back(exact - std::floor(exact));
    given += shares.back();
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; given < total; ++i, ++given) ++shares[order[i % order.size()]];
  return shares;
}

}  // namespace cleave::rivals
