// What panels in flight bring over a network: steps of one layer on device ranks behind wires of a given rate, with
// operands in panels and in one message, in turns; beside them the time for which a wire that never waits would be
// busy.
//
//   build/release/bench/panels_bench [MBIT_PER_S] [RANKS] [GROUPS]    default: 1000 Mbit/s each way and rank, 1 rank
//
// With GROUPS of rows devices keep their columns of the weights from group to group.
// Everything is in one process; a wire lets a frame through when the bytes before it and its own have had their time.
// Clock off: real time, medians over steps. The parameters must be the same either way.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/loopback.hpp"
#include "cleave/device/host.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/trainer.hpp"
#include "timing.hpp"

namespace {

using namespace cleave;

constexpr std::int64_t kBatch = 8, kSteps = 5;
const model::ModelConfig kModel{.family = "gpt2",
                                .vocab_size = 256,
                                .n_layer = 1,
                                .n_head = 12,
                                .n_kv_head = 12,
                                .d_model = 768,
                                .d_ff = 3072,
                                .seq_len = 256,
                                .max_pos = 256};

/// Lets what is sent to each rank through at a rate.
class Wire final : public comm::Transport {
 public:
  Wire(std::unique_ptr<comm::Transport> inner, BytesPerSecond rate)
      : inner_(std::move(inner)), rate_(rate), links_(static_cast<std::size_t>(inner_->size())) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void send(int dest, comm::Frame frame) override {
    Link& link = links_[static_cast<std::size_t>(dest)];
    link.free = std::max(link.free, clock_.now()) + Bytes(frame.size()) / rate_;
    link.held.emplace_back(link.free, std::move(frame));
  }
  [[nodiscard]] std::optional<comm::Received> poll() override {
    let_through();
    return inner_->poll();
  }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override {
    const Seconds end = clock_.now() + at_most;
    for (;;) {
      Seconds until = end;
      for (const Link& link : links_) {
        if (!link.held.empty()) until = std::min(until, link.held.front().first);
      }
      if (auto received = inner_->wait(std::max(Seconds(0), until - clock_.now()))) return received;
      let_through();
      if (until == end || interrupted_.exchange(false)) return std::nullopt;
    }
  }
  void interrupt() override {
    interrupted_ = true;
    inner_->interrupt();
  }
  [[nodiscard]] bool gone(int rank) const override { return inner_->gone(rank); }
  void abandon(int rank) override { inner_->abandon(rank); }
  bool close(Seconds at_most) override {
    for (Link& link : links_) {
      for (auto& [due, frame] : link.held) inner_->send(static_cast<int>(&link - links_.data()), std::move(frame));
      link.held.clear();
    }
    return inner_->close(at_most);
  }
  [[nodiscard]] comm::TransportStats stats() const override { return inner_->stats(); }

 private:
  struct Link {
    Seconds free;
    std::deque<std::pair<Seconds, comm::Frame>> held;
  };
  void let_through() {
    for (std::size_t rank = 0; rank < links_.size(); ++rank) {
      Link& link = links_[rank];
      while (!link.held.empty() && link.held.front().first <= clock_.now()) {
        inner_->send(static_cast<int>(rank), std::move(link.held.front().second));
        link.held.pop_front();
      }
    }
  }

  std::unique_ptr<comm::Transport> inner_;
  BytesPerSecond rate_;
  SteadyClock clock_;
  std::vector<Link> links_;
  std::atomic<bool> interrupted_{false};
};

data::Batch batch_of(std::int64_t step) {
  data::Batch batch{.rows = kBatch, .seq = kModel.seq_len, .tokens = {}, .targets = {}};
  const Random random(7, Purpose::test, static_cast<std::uint32_t>(step));
  for (std::int64_t i = 0; i < kBatch * kModel.seq_len; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(i), 256)));
    batch.targets.push_back((batch.tokens.back() * 7 + 3) % 256);
  }
  return batch;
}

struct Run {
  double step_s = 0, device_s = 0, wire_s = 0;
  std::int64_t messages = 0;
  std::uint64_t hash = 0;
};

Run train(int ranks, BytesPerSecond rate, std::int64_t groups, std::int64_t panels) {
  server::TrainerOptions options;
  options.model = kModel;
  options.batch = kBatch;
  options.train = {.steps = kSteps, .warmup_steps = 1, .lr_decay_steps = kSteps};
  options.layout.row_groups = groups;
  if (groups > 1) options.plan.keep_columns = plan::KeepColumns::always;
  options.executor.parts.most = panels;
  options.executor.verification.mode = server::VerifyMode::off;
  options.fleet.clock = server::ClockMode::off;
  options.fleet.gemm_kernels = kernels::name_of(kernels::selected_gemm_kernels());
  for (int i = 0; i < ranks; ++i) {
    options.devices.push_back({.id = DeviceId(i),
                               .name = "host",
                               .compute = FlopsPerSecond(100e9),
                               .memory = Bytes(std::int64_t{4} << 30),
                               .downlink = rate,
                               .uplink = rate,
                               .latency = Seconds(1e-4),
                               .jitter = Seconds(0)});
  }
  comm::LoopbackHub hub(1 + ranks);
  Wire server(hub.endpoint(0), rate);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank <= ranks; ++rank) {
    hosts.emplace_back(
        [wire = std::make_shared<Wire>(hub.endpoint(rank), rate)] { (void)device::run_device_host(*wire); });
  }
  server::ParameterStore parameters(
      model::build_step(kModel,
                        {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}),
      11);
  Run run;
  {
    server::Trainer trainer(parameters, options, &server);
    std::vector<double> steps;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const server::StepResult result = trainer.step(step, batch_of(step));
      if (step > 0) steps.push_back(result.wall.value());
    }
    run.step_s = bench::median(steps);
    run.device_s = trainer.verification().device_time.value() / static_cast<double>(kSteps);
    const double bytes = static_cast<double>(server.stats().bytes_sent);
    run.wire_s = bytes / static_cast<double>(kSteps * ranks) / rate.value();
    run.messages = server.stats().frames_sent / kSteps;
    (void)trainer.say_goodbye(Seconds(10));
  }
  for (std::thread& host : hosts) host.join();
  run.hash = parameters.hash();
  return run;
}

}  // namespace

int main(int argc, char** argv) {
  const double megabits = argc > 1 ? std::atof(argv[1]) : 1000;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  const int groups = argc > 3 ? std::atoi(argv[3]) : 1;
  const BytesPerSecond rate(megabits * 1e6 / 8);
  const std::int64_t most = server::PartLimits{}.most;
  for (int turn = 0; turn < 2; ++turn) {
    const Run whole = train(ranks, rate, groups, 1), panels = train(ranks, rate, groups, most);
    CLEAVE_ASSERT(whole.hash == panels.hash, "the parameters are {:x} and {:x}", whole.hash, panels.hash);
    fmt::print(
        "{} Mbit/s, {} ranks, {} groups: whole {:.3f} s a step ({} messages, devices multiply for {:.3f} s), panels "
        "{:.3f} s ({}, {:.3f} s): {:.3f}; a wire out is busy for {:.3f} s\n",
        megabits, ranks, groups, whole.step_s, whole.messages, whole.device_s, panels.step_s, panels.messages,
        panels.device_s, panels.step_s / whole.step_s, panels.wire_s);
  }
  return 0;
}
