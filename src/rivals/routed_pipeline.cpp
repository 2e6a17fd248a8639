// The event loop of a pipeline with routing.
#include "routed_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "pipeline_events.hpp"

namespace cleave::rivals {

namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

struct RoutedEntry {
  double at_s = 0;
  std::int64_t sequence = 0;
  PipelineEvent what = PipelineEvent::forward_ready;
  std::size_t replica = 0, micro_batch = 0;
  bool backward = false;
  bool operator>(const RoutedEntry& other) const {
    return at_s != other.at_s ? at_s > other.at_s : sequence > other.sequence;
  }
};

struct RoutedSending {
  std::size_t micro_batch = 0, to = kNobody;
  bool backward = false;
};

struct RoutedState {
  std::deque<std::size_t> forward_ready, backward_ready;
  std::deque<RoutedSending> outbox;
  bool computing = false, sending = false;
  double downlink_free_s = 0;
  // What it still has to do, in both directions, of the micro-batches that were given to it.
  double owed_forward_s = 0, owed_backward_s = 0, owed_up_s = 0, owed_down_s = 0;
  std::int64_t in_flight = 0;
};

struct Waiting {
  std::size_t micro_batch = 0, from = kNobody;
};

class RoutedRun {
 public:
  RoutedRun(const Network& network, std::span<const RoutedDevice> replicas, std::span<const double> boundary_bytes,
            std::span<const std::int64_t> sizes, Routing routing)
      : network_(network),
        routing_(routing),
        replicas_(replicas),
        boundary_bytes_(boundary_bytes),
        sizes_(sizes),
        by_stage_(boundary_bytes.size() + 1),
        waiting_(by_stage_.size()),
        path_(sizes.size(), std::vector<std::size_t>(by_stage_.size(), kNobody)),
        states_(replicas.size()),
        times_(replicas.size()) {
    for (std::size_t r = 0; r < replicas.size(); ++r) by_stage_[replicas[r].stage].push_back(r);
    for (const std::vector<std::size_t>& stage : by_stage_) CLEAVE_ASSERT(!stage.empty(), "a stage without a replica");
  }

  std::vector<RoutedTimes> finish() {
    for (std::size_t m = 0; m < sizes_.size(); ++m) route({m, kNobody}, 0);
    while (!agenda_.empty()) {
      const RoutedEntry entry = agenda_.top();
      agenda_.pop();
      now_s_ = entry.at_s;
      serve(entry);
    }
    return std::move(times_);
  }

 private:
  void push(RoutedEntry entry) {
    entry.sequence = sequence_++;
    agenda_.push(entry);
  }
  [[nodiscard]] double size_of(std::size_t micro_batch) const { return static_cast<double>(sizes_[micro_batch]); }

  [[nodiscard]] const fleet::DeviceProfile& device_of(std::size_t replica) const {
    return network_.device(replicas_[replica].device);
  }

  // Bytes that a replica sends, and receives, for a sequence: the activations on one side of it go the one way, the
  // gradients of those on the other side the other way.
  [[nodiscard]] double carried(std::size_t replica) const {
    const std::size_t stage = replicas_[replica].stage;
    return (stage > 0 ? boundary_bytes_[stage - 1] : 0) + (stage < boundary_bytes_.size() ? boundary_bytes_[stage] : 0);
  }

  // When a replica would be done with a micro-batch that is given to it now, if whichever of its resources has most to
  // do never waited.
  [[nodiscard]] double expected_s(std::size_t replica, const Waiting& job) const {
    const RoutedState& state = states_[replica];
    const double size = size_of(job.micro_batch);
    double arrival_s = now_s_;
    if (job.from != kNobody) {
      const Hop hop = hop_of(job.from, replica, job.micro_batch, false);
      arrival_s =
          std::max(now_s_ + hop.send_s, std::max(now_s_, state.downlink_free_s) + hop.receive_s) + hop.latency_s;
    }
    const RoutedDevice& own = replicas_[replica];
    if (routing_ == Routing::by_forward_pass)
      return std::max(arrival_s, now_s_ + state.owed_forward_s) + size * own.forward_s;
    const double compute_s = state.owed_forward_s + state.owed_backward_s, bytes = size * carried(replica);
    return std::max({std::max(arrival_s, now_s_ + compute_s) + size * (own.forward_s + own.backward_s),
                     now_s_ + state.owed_up_s + bytes / device_of(replica).uplink.value(),
                     now_s_ + state.owed_down_s + bytes / device_of(replica).downlink.value()});
  }

  // Gives a micro-batch to a replica of the stage, or lets it wait.
  void route(const Waiting& job, std::size_t stage) {
    std::size_t best = kNobody;
    double best_s = std::numeric_limits<double>::infinity();
    for (const std::size_t r : by_stage_[stage]) {
      if (states_[r].in_flight >= replicas_[r].room) continue;
      const double time_s = expected_s(r, job);
      if (time_s < best_s) {
        best_s = time_s;
        best = r;
      }
    }
    if (best == kNobody) return waiting_[stage].push_back(job);
    RoutedState& state = states_[best];
    path_[job.micro_batch][stage] = best;
    times_[best].most_in_flight = std::max(times_[best].most_in_flight, ++state.in_flight);
    const double size = size_of(job.micro_batch), bytes = size * carried(best);
    state.owed_forward_s += size * replicas_[best].forward_s;
    state.owed_backward_s += size * replicas_[best].backward_s;
    state.owed_up_s += bytes / device_of(best).uplink.value();
    state.owed_down_s += bytes / device_of(best).downlink.value();
    if (job.from == kNobody) {
      state.forward_ready.push_back(job.micro_batch);
      compute(best);
    } else {
      states_[job.from].outbox.push_back({job.micro_batch, best, false});
      send(job.from);
    }
  }

  void serve(const RoutedEntry& entry) {
    RoutedState& state = states_[entry.replica];
    switch (entry.what) {
      case PipelineEvent::forward_ready: state.forward_ready.push_back(entry.micro_batch); break;
      case PipelineEvent::backward_ready: state.backward_ready.push_back(entry.micro_batch); break;
      case PipelineEvent::computed: computed(entry); break;
      case PipelineEvent::uplink_free: state.sending = false; break;
    }
    compute(entry.replica);
    send(entry.replica);
  }

  void computed(const RoutedEntry& entry) {
    RoutedState& state = states_[entry.replica];
    const std::size_t stage = replicas_[entry.replica].stage, m = entry.micro_batch;
    state.computing = false;
    RoutedTimes& times = times_[entry.replica];
    times.end_s = now_s_;
    times.quiet_s = std::max(times.quiet_s, now_s_);
    if (entry.backward) {
      state.owed_backward_s -= size_of(m) * replicas_[entry.replica].backward_s;
    } else {
      state.owed_forward_s -= size_of(m) * replicas_[entry.replica].forward_s;
    }
    if (!entry.backward) {
      if (stage + 1 == by_stage_.size()) {
        state.backward_ready.push_back(m);
      } else {
        route({m, entry.replica}, stage + 1);
      }
      return;
    }
    if (stage > 0) state.outbox.push_back({m, path_[m][stage - 1], true});
    --state.in_flight;
    if (waiting_[stage].empty()) return;
    const Waiting next = waiting_[stage].front();
    waiting_[stage].pop_front();
    route(next, stage);
  }

  void compute(std::size_t r) {
    RoutedState& state = states_[r];
    if (state.computing) return;
    const bool backward = !state.backward_ready.empty();
    std::deque<std::size_t>& queue = backward ? state.backward_ready : state.forward_ready;
    if (queue.empty()) return;
    const std::size_t m = queue.front();
    queue.pop_front();
    const double time_s = size_of(m) * (backward ? replicas_[r].backward_s : replicas_[r].forward_s);
    times_[r].compute_s += time_s;
    state.computing = true;
    push({.at_s = now_s_ + time_s,
          .what = PipelineEvent::computed,
          .replica = r,
          .micro_batch = m,
          .backward = backward});
  }

  [[nodiscard]] Hop hop_of(std::size_t from, std::size_t to, std::size_t micro_batch, bool backward) const {
    const std::size_t lower = backward ? replicas_[to].stage : replicas_[from].stage;
    return network_.hop(replicas_[from].device, replicas_[to].device, size_of(micro_batch) * boundary_bytes_[lower]);
  }

  void send(std::size_t r) {
    RoutedState& state = states_[r];
    if (state.sending || state.outbox.empty()) return;
    const RoutedSending job = state.outbox.front();
    state.outbox.pop_front();
    const Hop hop = hop_of(r, job.to, job.micro_batch, job.backward);
    RoutedState& receiver = states_[job.to];
    const double start_s = std::max(now_s_, receiver.downlink_free_s);
    receiver.downlink_free_s = start_s + hop.receive_s;
    const double through_s = std::max(now_s_ + hop.send_s, start_s + hop.receive_s);
    const std::size_t lower = job.backward ? replicas_[job.to].stage : replicas_[r].stage;
    const double payload = size_of(job.micro_batch) * boundary_bytes_[lower];
    const double bytes = payload + static_cast<double>(plan::kMessageHeader.value());
    state.owed_up_s -= payload / device_of(r).uplink.value();
    receiver.owed_down_s -= payload / device_of(job.to).downlink.value();
    times_[r].up_s += hop.send_s;
    times_[r].bytes_up += bytes;
    times_[r].quiet_s = std::max(times_[r].quiet_s, now_s_ + hop.send_s);
    times_[job.to].down_s += hop.receive_s;
    times_[job.to].bytes_down += bytes;
    state.sending = true;
    push({.at_s = now_s_ + hop.send_s, .what = PipelineEvent::uplink_free, .replica = r});
    push({.at_s = through_s + hop.latency_s,
          .what = job.backward ? PipelineEvent::backward_ready : PipelineEvent::forward_ready,
          .replica = job.to,
          .micro_batch = job.micro_batch});
  }

  const Network& network_;
  Routing routing_;
  std::span<const RoutedDevice> replicas_;
  std::span<const double> boundary_bytes_;
  std::span<const std::int64_t> sizes_;
  std::vector<std::vector<std::size_t>> by_stage_;
  std::vector<std::deque<Waiting>> waiting_;
  std::vector<std::vector<std::size_t>> path_;  // [micro-batch][stage]: replica
  std::vector<RoutedState> states_;
  std::vector<RoutedTimes> times_;
  std::priority_queue<RoutedEntry, std::vector<RoutedEntry>, std::greater<>> agenda_;
  std::int64_t sequence_ = 0;
  double now_s_ = 0;
};

}  // namespace

std::vector<RoutedTimes> run_routed(const Network& network, std::span<const RoutedDevice> devices,
                                    std::span<const double> boundary_bytes, std::span<const std::int64_t> micro_batches,
                                    Routing routing) {
  return RoutedRun(network, devices, boundary_bytes, micro_batches, routing).finish();
}

}  // namespace cleave::rivals
