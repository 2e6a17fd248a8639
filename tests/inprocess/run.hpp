// A training run of a small model in this process, and the one number that says whether two runs ended with the same
// bits.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/base/sanitizer.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/comm/loopback.hpp"
#include "cleave/device/host.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "cleave/server/trainer.hpp"

namespace cleave::testing_run {

/// The types in which values travel.
struct Wire {
  DType type = DType::f32;
  std::optional<DType> boundary{};         ///< of rows between stages; none: the same
  operator DType() const { return type; }  // NOLINT(google-explicit-constructor)
  Wire(DType of, std::optional<DType> between = {})
      : type(of), boundary(between) {}  // NOLINT(google-explicit-constructor)
};
inline std::string name_of(const Wire& wire) {
  return std::string(cleave::name_of(wire.type)) +
         (wire.boundary ? "_and_" + std::string(cleave::name_of(*wire.boundary)) : "");
}

/// Everything that may differ between two runs that must end alike, and what may not.
struct Setting {
  model::ModelConfig model{.family = "gpt2",
                           .vocab_size = 61,
                           .n_layer = 2,
                           .n_head = 4,
                           .n_kv_head = 4,
                           .d_model = 32,
                           .d_ff = 64,
                           .seq_len = 64,
                           .max_pos = 64};
  std::int64_t batch = 25;  // 1600 tokens: the weight gradients have two K blocks
  std::int64_t steps = 3;
  int device_ranks = 1;
  std::vector<fleet::DeviceProfile> devices;
  plan::Partition partition = plan::Partition::automatic;
  server::ClockMode clock = server::ClockMode::virtual_time;
  Wire wire = DType::f32;
  int threads = 1;
  server::Verification verification{.mode = server::VerifyMode::off};
  fleet::ChurnTrace churn;
  std::vector<std::string> freeze;
  server::PartLimits parts{};
  bool one_token = false;  // every token and target the same, as padding is
  std::int64_t row_groups = 1;
  sched::Layout layout = sched::Layout::tiles;
  std::int64_t chunk_tokens = 0;  // of steps in stages; 0: planned
  plan::OwnerPlaces owners = plan::OwnerPlaces::automatic;
  bool rounds = true, preload = true, server_sums = true;
  std::optional<plan::StagePlan> stage_plan;  // that the first step begins with
  plan::KeepColumns keep_columns = plan::KeepColumns::where_quicker;
  FlopsPerSecond server_compute = fleet::ServerProfile{}.compute;
  double grad_clip = 1.0;
  float initial_scale = 1;         // of all parameters as the run begins
  int evaluations = 0;             // batches after each step
  std::vector<std::string> hosts;  // that device ranks say they are on; empty: the truth
  std::optional<Seconds> patience{};
  // What stands between a device rank and its endpoint; empty: nothing.
  using Between = std::shared_ptr<comm::Transport>(std::shared_ptr<comm::Transport> endpoint, int rank);
  std::function<Between> between{};
};

/// A model for tests that train it hundreds of times.
inline Setting small_setting() {
  Setting s;
  s.model = {.family = "gpt2",
             .vocab_size = 31,
             .n_layer = 1,
             .n_head = 2,
             .n_kv_head = 2,
             .d_model = 16,
             .d_ff = 32,
             .seq_len = 16,
             .max_pos = 16};
  s.batch = 4;
  s.steps = 2;
  return s;
}

inline const Wire kWires[] = {DType::f32, DType::bf16, DType::f16};
/// Of tests that take long: also with 8 bits between stages; under the address sanitizer, which is several times as
/// slow and for memory alone, with these only.
#ifdef CLEAVE_ADDRESS_SANITIZER
inline const Wire kSomeWires[] = {{DType::f16, DType::mxint8}};
#else
inline const Wire kSomeWires[] = {DType::f32, DType::bf16, DType::f16, {DType::f16, DType::mxint8}};
#endif

inline Setting with_wire(Setting setting, const Wire& wire) {
  setting.wire = wire;
  return setting;
}

inline Setting in_stages(Setting setting, std::vector<fleet::DeviceProfile> devices, int ranks) {
  setting.devices = std::move(devices);
  setting.device_ranks = ranks;
  setting.layout = sched::Layout::stages;
  return setting;
}

/// A device that lies in this share of what it answers.
/// Of every device.
inline void set_memory(Setting& s, std::int64_t bytes) {
  for (fleet::DeviceProfile& device : s.devices) device.memory = Bytes(bytes);
}

inline fleet::ChurnEvent liar(std::int64_t device, double share, fleet::InjectedFaultKind kind) {
  return {Seconds(0), DeviceId(device), fleet::ChurnKind::faulty, share, kind};
}

inline constexpr server::PartLimits kSmallParts{.most = 4, .least_rows = 3, .least_bytes = 64};

struct Outcome {
  std::uint64_t hash = 0;
  double first_loss = 0, last_loss = 0;
  std::int64_t lost = 0, redone = 0, rejected = 0, tasklets = 0, witnesses = 0, late = 0, server_sums = 0;
  std::int64_t head_parts = 0;  // of simulate()
  std::int64_t messages = 0;    // between server and device ranks, either way
  Bytes bytes_down{0}, bytes_up{0};
  Bytes sent{0}, received{0};  // by the server, really
  Joules energy{0};
  Seconds time;     // emulated, of all steps
  Seconds dilated;  // real, of all steps, under the wall clock
  std::vector<DeviceId> distrusted;
  std::int64_t sooner_than_bound = 0;  // steps that nothing disturbed
  std::int64_t recomputed = 0;         // unchecked blocks for which a step was run again
  std::int64_t taken_back = 0;         // steps
  std::int64_t parts_stay = 0;         // times that what somebody did was out of reach
  std::int64_t went_back_to = std::numeric_limits<std::int64_t>::max();  // the earliest step that was gone back to
  std::optional<std::int64_t> parts_known_from;                          // Trainer::remember_parts()
  server::VerificationReport verification;
};

/// `count` unlike devices, the quickest 2.8 times as fast as the first, and none less than half as fast as the next:
/// small fleets are tried without such ones.
inline std::vector<fleet::DeviceProfile> unlike_devices(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t i = 0; i < count; ++i) {
    const double factor = 1 + 0.6 * static_cast<double>(i % 4);
    devices.push_back({.id = DeviceId(i),
                       .name = "test",
                       .compute = FlopsPerSecond(1e9 * factor),
                       .memory = Bytes(64 << 20),
                       .downlink = BytesPerSecond(1e7 * factor),
                       .uplink = BytesPerSecond(5e6 * factor),
                       .latency = Seconds(1e-4),
                       .jitter = Seconds(0)});
  }
  return devices;
}

/// `count` devices, each like the first of unlike_devices(): each has work in every operation.
inline std::vector<fleet::DeviceProfile> alike_devices(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices(static_cast<std::size_t>(count), unlike_devices(1).front());
  for (std::int64_t i = 0; i < count; ++i) devices[static_cast<std::size_t>(i)].id = DeviceId(i);
  return devices;
}

/// The same devices with every rate divided.
inline std::vector<fleet::DeviceProfile> slower(std::vector<fleet::DeviceProfile> devices, double factor) {
  for (fleet::DeviceProfile& device : devices) {
    device.compute = device.compute / factor;
    device.downlink = device.downlink / factor;
    device.uplink = device.uplink / factor;
  }
  return devices;
}

inline data::Batch batch_of(const Setting& s, std::int64_t step) {
  data::Batch batch{.rows = s.batch, .seq = s.model.seq_len, .tokens = {}, .targets = {}};
  const Random random(7, Purpose::test, static_cast<std::uint32_t>(step));
  for (std::int64_t i = 0; i < s.batch * s.model.seq_len; ++i) {
    batch.tokens.push_back(s.one_token
                               ? 5
                               : static_cast<std::int32_t>(random.below(
                                     static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(s.model.vocab_size))));
    batch.targets.push_back(static_cast<std::int32_t>((batch.tokens.back() * 7 + 3) % s.model.vocab_size));
  }
  return batch;
}

inline server::TrainerOptions options_of(const Setting& s) {
  server::TrainerOptions options;
  options.model = s.model;
  options.batch = s.batch;
  options.freeze = s.freeze;
  options.wire = s.wire;
  options.boundary = s.wire.boundary;
  options.train = {.steps = s.steps,
                   .lr = 1e-2,
                   .min_lr = 1e-3,
                   .warmup_steps = 1,
                   .lr_decay_steps = s.steps,
                   .grad_clip = s.grad_clip};
  options.plan.partition = s.partition;
  options.plan.server.compute = s.server_compute;
  options.layout.row_groups = s.row_groups;
  options.layout.layout = s.layout;
  options.layout.chunk_tokens = s.chunk_tokens;
  options.layout.owners = s.owners;
  options.layout.rounds = s.rounds;
  options.layout.preload = s.preload;
  options.layout.server_sums = s.server_sums;
  options.stage_plan = s.stage_plan;
  options.plan.keep_columns = s.keep_columns;
  options.executor = {.threads = s.threads, .verification = s.verification, .parts = s.parts};
  if (s.verification.mode == server::VerifyMode::quorum) {
    options.paired = s.verification.fraction;
    // The draws of a test are its own: with those of the operating system, whether it finds a liar would be chance.
    std::optional<SipKey>& secret = options.executor.verification.pair_secret;
    if (!secret) std::memcpy(secret.emplace().data(), &s.verification.seed, sizeof s.verification.seed);
  }
  options.devices = s.devices;
  options.fleet.clock = s.clock;
  options.fleet.gemm_kernels = kernels::name_of(kernels::selected_gemm_kernels());
  options.churn = s.churn;
  options.fleet.start_limit = Seconds(60);
  if (s.patience) options.fleet.patience = *s.patience;
  return options;
}

inline server::ParameterStore initial_parameters(const Setting& s) {
  const model::StepGraph graph = model::build_step(
      s.model, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0});
  server::ParameterStore parameters(graph, 11);
  for (const model::TensorSpec& tensor : graph.tensors) {
    if (tensor.role != model::TensorRole::parameter || s.initial_scale == 1) continue;
    for (float& value : parameters.at(tensor.name).value) value *= s.initial_scale;
  }
  return parameters;
}

/// What one process leaves to the next, where a run is more than one.
struct Handover {
  std::string parts;  // Trainer::part_record()
  server::EarlierStates* earlier = nullptr;
  std::function<void(std::int64_t step)> on_state{};  // called where a checkpoint may be written: before that step
};

/// Trains steps [first, last) on `parameters`.
inline Outcome train(const Setting& s, server::ParameterStore& parameters, std::int64_t first, std::int64_t last,
                     Handover* handover = nullptr) {
  Outcome outcome;
  comm::LoopbackHub hub(1 + s.device_ranks);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::vector<std::thread> hosts;
  if (!s.devices.empty()) {
    for (int rank = 1; rank <= s.device_ranks; ++rank) {
      hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank)), &s, rank] {
        device::HostOptions options;
        if (!s.hosts.empty()) options.host = s.hosts.at(static_cast<std::size_t>(rank - 1));
        (void)device::run_device_host(s.between ? *s.between(endpoint, rank) : *endpoint, options);
      });
    }
  }
  {
    server::Trainer trainer(parameters, options_of(s), s.devices.empty() ? nullptr : server.get());
    const auto leave = [&] {
      (void)trainer.say_goodbye(Seconds(10));
      for (std::thread& host : hosts) host.join();
    };
    if (handover != nullptr) {
      trainer.use(*handover->earlier);
      if (first > 0) outcome.parts_known_from = trainer.remember_parts(first, handover->parts);
    }
    try {
      for (std::int64_t step = first; step < last;) {
        const server::StepResult result = trainer.step(step, batch_of(s, step));
        const bool calm = result.report.lost == 0 && result.report.rejected == 0 && result.report.server_sums == 0;
        if (calm && s.churn.empty() && result.time < result.lower_bound * (1 - 1e-9)) ++outcome.sooner_than_bound;
        if (step == first) outcome.first_loss = result.outcome.loss;
        outcome.last_loss = result.outcome.loss;
        outcome.lost += result.report.lost;
        outcome.redone += result.report.redone;
        outcome.rejected += result.report.rejected;
        for (const server::Unchecked& unchecked : result.recomputed) outcome.recomputed += unchecked.blocks;
        outcome.tasklets += result.report.tasklets;
        outcome.witnesses += result.report.witnesses;
        outcome.late += result.report.late;
        outcome.server_sums += result.report.server_sums;
        outcome.bytes_down += result.report.bytes_down;
        outcome.bytes_up += result.report.bytes_up;
        outcome.energy += result.report.energy;
        outcome.time += result.time;
        if (result.dilation) outcome.dilated += result.time * *result.dilation;
        for (int i = 0; i < s.evaluations; ++i) (void)trainer.evaluate(std::vector{batch_of(s, 1000 + i)});
        const server::TakenBack taken = trainer.take_back();
        outcome.taken_back += taken.step ? step + 1 - *taken.step : 0;
        if (taken.stays) ++outcome.parts_stay;
        step = taken.step.value_or(step + 1);
        outcome.went_back_to = std::min(outcome.went_back_to, taken.step.value_or(outcome.went_back_to));
        if (handover != nullptr && !taken.step) handover->on_state(step);
      }
      if (handover != nullptr) handover->parts = trainer.part_record(last);
    } catch (...) {
      leave();
      throw;
    }
    outcome.distrusted = trainer.distrusted();
    outcome.verification = trainer.verification();
    leave();
    outcome.messages = server->stats().frames_sent + server->stats().frames_received;
    outcome.sent = Bytes(server->stats().bytes_sent);
    outcome.received = Bytes(server->stats().bytes_received);
  }
  outcome.hash = parameters.hash();
  return outcome;
}

inline Outcome train(const Setting& s) {
  server::ParameterStore parameters = initial_parameters(s);
  return train(s, parameters, 0, s.steps);
}

/// What simulate says of the same run in stages, churn included.
inline Outcome simulate(const Setting& s) {
  const server::TrainerOptions options = options_of(s);
  const model::StepGraph graph = model::graph_of_stages({s.model, s.batch, s.freeze, s.wire, s.wire.boundary});
  sched::SimulatedFleet fleet(options.devices, options.server(), options.wire, s.churn);
  sched::StageScheduler scheduler(fleet, graph, sched::stage_scheduler_options(options));
  Outcome simulated;
  for (std::int64_t step = 0; step < s.steps; ++step) {
    const sched::StepReport report = scheduler.run();
    simulated.time += report.time;
    simulated.bytes_down += report.bytes_down;
    simulated.bytes_up += report.bytes_up;
    simulated.energy += report.energy;
    simulated.witnesses += report.witnesses;
  }
  simulated.head_parts = scheduler.plan().head_parts;
  return simulated;
}

/// The parameters of the run without liars, losses and checks, computed by the server alone.
inline std::uint64_t honest_bits(Setting s) {
  s.churn.clear();
  s.devices.clear();
  s.verification = {.mode = server::VerifyMode::off};
  return train(s).hash;
}

}  // namespace cleave::testing_run
