// Steps in stages drawn at random: a model, a fleet, one of the layouts that the planner thinks of, and devices that
// come and go all the time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cleave/model/family.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"
#include "support/draw.hpp"

namespace cleave::sched {

struct DrawnStages {
  model::StepGraph graph;
  std::vector<fleet::DeviceProfile> devices;
  StageSchedulerOptions options;
  plan::StagePlan plan;
  Seconds calm;  ///< the step's time where nobody leaves
  fleet::ChurnTrace churn;
};

class StageDraw : private testing_support::Draw {
 public:
  explicit StageDraw(std::uint64_t seed) : Draw(seed, 23) {}

  /// None: the devices cannot hold the model.
  std::optional<DrawnStages> stages() {
    DrawnStages drawn;
    const std::int64_t batch = between(1, 8);
    std::vector<std::string> freeze;
    if (chance(0.15)) freeze = {chance(0.5) ? "*.0.*" : "*embed*"};
    drawn.graph = model::build_step(model(), {.kind = model::StepKind::train,
                                              .batch = batch,
                                              .clip = chance(0.7),
                                              .freeze = freeze,
                                              .loss_rows = 0,
                                              .row_groups = 1});
    draw_devices(drawn);
    draw_options(drawn);
    std::vector<plan::StagePlan> plans =
        plan::stage_candidates(plan::stage_work_of(drawn.graph, drawn.options.wire), drawn.devices,
                               drawn.options.stages, static_cast<std::size_t>(between(1, 40)));
    if (plans.empty()) return std::nullopt;
    drawn.plan = one_of(plans);
    if (drawn.options.quorum && drawn.plan.has_tiles()) drawn.options.quorum.reset();
    SimulatedFleet calm(drawn.devices, drawn.options.stages.server, drawn.options.wire);
    drawn.calm = StageScheduler(calm, drawn.graph, drawn.plan, drawn.options).run().time;
    draw_churn(drawn);
    return drawn;
  }

 private:
  void draw_devices(DrawnStages& drawn) {
    const double memory = scale(1e6, 3e8);
    for (std::int64_t i = chance(0.2) ? between(16, 40) : between(2, 12); i > 0; --i) {
      drawn.devices.push_back({.id = DeviceId(std::ssize(drawn.devices)),
                               .name = "drawn",
                               .compute = FlopsPerSecond(scale(1e9, 1e11)),
                               .memory = Bytes(static_cast<std::int64_t>(memory * scale(0.7, 1.5))),
                               .downlink = BytesPerSecond(scale(1e6, 1e8)),
                               .uplink = BytesPerSecond(scale(5e5, 5e7)),
                               .latency = Seconds(chance(0.5) ? 0 : scale(1e-5, 1e-2)),
                               .jitter = Seconds(0)});
    }
  }
  void draw_options(DrawnStages& drawn) {
    StageSchedulerOptions& options = drawn.options;
    options.stages.server = kWide;
    if (chance(0.2)) options.stages.server.nic_out = options.stages.server.nic_in = BytesPerSecond(scale(1e7, 1e9));
    options.wire = chance(0.5) ? DType::f16 : DType::f32;
    if (chance(0.6)) options.stages.chunk = plan::kChunkTokens;
    options.stages.preload = chance(0.8);
    options.server_sums = one_of(std::vector{ServerSums::never, ServerSums::if_nobody_else, ServerSums::if_sooner});
    options.may_give_up = true;
    if (chance(0.2)) options.quorum = QuorumOptions{.fraction = chance(0.5) ? 1.0 : 0.3, .plan = {}};
  }
  // Devices that leave, alone or several at once, most of which come back; some only hang, or slow down.
  void draw_churn(DrawnStages& drawn) {
    const auto device = [&] { return DeviceId(between(0, std::ssize(drawn.devices) - 1)); };
    for (std::int64_t i = between(1, 12); i > 0; --i) {
      const Seconds at = drawn.calm * (1.5 * uniform());
      for (std::int64_t k = chance(0.3) ? between(2, 4) : 1; k > 0; --k) {
        const DeviceId victim = device();
        const fleet::ChurnKind kind = chance(0.75)  ? fleet::ChurnKind::leave
                                      : chance(0.5) ? fleet::ChurnKind::hang
                                                    : fleet::ChurnKind::slow;
        drawn.churn.push_back({at, victim, kind, kind == fleet::ChurnKind::slow ? scale(1e-3, 1) : 1.0});
        if (!chance(0.8)) continue;
        const Seconds away = chance(0.2) ? Seconds(0) : drawn.calm * (0.5 * uniform());
        drawn.churn.push_back({at + away, victim, fleet::ChurnKind::join, 1.0});
      }
    }
    std::ranges::stable_sort(drawn.churn, {}, &fleet::ChurnEvent::at);
  }
  model::ModelConfig model() {
    model::ModelConfig m;
    m.family = one_of(std::vector<std::string>{"gpt2", "opt", "llama"});
    m.n_layer = between(1, 6);
    m.n_head = between(1, 6);
    m.n_kv_head = m.family == "llama" && chance(0.5) ? 1 : m.n_head;
    m.d_model = m.n_head * 2 * between(4, 24);
    m.d_ff = between(16, 5 * m.d_model);
    m.vocab_size = chance(0.3) ? between(2000, 20000) : between(20, 1000);
    m.seq_len = m.max_pos = chance(0.3) ? between(1, 128) : between(128, 900);
    return m;
  }
};

}  // namespace cleave::sched
