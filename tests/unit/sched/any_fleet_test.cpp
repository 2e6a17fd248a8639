// Steps of models, fleets and losses drawn at random, in whatever layout is chosen: each ends, no sooner than its bound
// says, and no device holds more than it has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "support/cases.hpp"
#include "support/draw.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few, testing_support::expect_of_drawn;

class DrawnSpec : private testing_support::Draw {
 public:
  explicit DrawnSpec(std::uint64_t seed) : Draw(seed, 9) {}

  StepSpec spec() {
    StepSpec spec;
    spec.model = model();
    spec.batch = between(1, 12);
    spec.clip = chance(0.7);
    spec.wire = chance(0.5) ? DType::f16 : DType::f32;
    if (chance(0.15)) spec.freeze = {chance(0.5) ? "*.0.*" : "*embed*"};
    if (chance(0.3)) spec.plan.server.nic_out = spec.plan.server.nic_in = BytesPerSecond(scale(1e6, 1e9));
    const double memory = scale(3e5, 3e8);
    for (std::int64_t i = chance(0.2) ? between(60, 140) : between(1, 30); i > 0; --i) {
      spec.devices.push_back({.id = DeviceId(std::ssize(spec.devices)),
                              .name = "drawn",
                              .compute = FlopsPerSecond(scale(1e9, 1e11)),
                              .memory = Bytes(static_cast<std::int64_t>(memory * scale(0.5, 2))),
                              .downlink = BytesPerSecond(scale(1e6, 1e8)),
                              .uplink = BytesPerSecond(scale(5e5, 5e7)),
                              .latency = Seconds(chance(0.5) ? 0 : scale(1e-5, 1e-1)),
                              .jitter = Seconds(0)});
    }
    if (chance(0.7)) spec.layout.layout = Layout::stages;
    if (chance(0.3)) spec.layout.chunk_tokens = 128;
    if (chance(0.2)) spec.layout.preload = false;
    if (chance(0.2)) spec.paired = 0.3;
    if (chance(0.25)) spec.boundary = DType::mxint8;
    return spec;
  }
  // Leaves, hangs, slow devices and returns over two steps.
  fleet::ChurnTrace churn(const StepSpec& spec, Seconds step) {
    fleet::ChurnTrace trace;
    for (std::int64_t i = between(1, 12); i > 0; --i) {
      const DeviceId device(between(0, std::ssize(spec.devices) - 1));
      const fleet::ChurnKind kinds[] = {fleet::ChurnKind::leave, fleet::ChurnKind::leave, fleet::ChurnKind::join,
                                        fleet::ChurnKind::hang, fleet::ChurnKind::slow};
      const fleet::ChurnKind kind = kinds[between(0, 4)];
      trace.push_back({step * (2 * uniform()), device, kind, kind == fleet::ChurnKind::slow ? scale(1e-3, 1) : 1.0});
    }
    std::ranges::stable_sort(trace, {}, &fleet::ChurnEvent::at);
    return trace;
  }

 private:
  model::ModelConfig model() {
    model::ModelConfig m;
    const char* families[] = {"gpt2", "opt", "llama"};
    m.family = families[between(0, 2)];
    m.n_layer = between(1, 10);
    m.n_head = between(1, 8);
    m.n_kv_head = m.family == "llama" && chance(0.5) ? 1 : m.n_head;
    m.d_model = m.n_head * 2 * between(2, 24);
    m.d_ff = between(16, 5 * m.d_model);
    m.vocab_size = chance(0.3) ? between(2000, 20000) : between(20, 1000);
    m.seq_len = m.max_pos = chance(0.5) ? between(1, 128) : between(128, 700);
    return m;
  }
};

// False: the devices cannot hold it.
bool ends(std::uint64_t seed, bool with_losses) {
  DrawnSpec drawn(seed);
  const StepSpec spec = drawn.spec();
  SCOPED_TRACE(testing::Message() << "fleet " << seed << ": " << spec.model.family << ' ' << spec.devices.size()
                                  << " devices");
  try {
    const LayoutChoice choice = choose_layout(spec);
    const model::StepGraph graph = model::build_step(spec.model, graph_options(spec, choice.row_groups));
    const auto run = [&](SimulatedFleet& fleet, int steps) {
      std::optional<Seconds> first;
      Joules energy;
      const auto add = [&](const StepReport& report) {
        if (!first) first = report.time;
        energy += report.energy;
      };
      if (choice.stages) {
        StageScheduler scheduler(fleet, graph, *choice.stages, stage_scheduler_options(spec));
        for (int k = 0; k < steps; ++k) add(scheduler.run());
      } else {
        Scheduler scheduler(fleet, scheduler_options(spec));
        for (int k = 0; k < steps; ++k) add(scheduler.run(graph));
      }
      Joules used;
      for (std::size_t i = 0; i < spec.devices.size(); ++i) {
        EXPECT_LE(fleet.usage()[i].memory_peak.value(), spec.devices[i].memory.value()) << "device " << i;
        used += energy_of(spec.devices[i], fleet.usage()[i], fleet.now());
      }
      // Of those that are gone as well.
      EXPECT_NEAR(energy.value(), used.value(), 1e-6 * used.value());
      return *first;
    };
    SimulatedFleet calm(spec.devices, spec.server(), spec.wire);
    const Seconds step = run(calm, 1);
    const Seconds bound =
        choice.stages ? plan::stage_lower_bound(plan::stage_work_of(graph, spec.wire), *choice.stages, spec.devices,
                                                spec.server(), plan::server_share(graph, spec.server()))
                      : step_lower_bound(graph, idle_devices(spec.devices), scheduler_options(spec));
    EXPECT_GE(step.value(), bound.value() * (1 - 1e-9));
    EXPECT_GE(step.value(), step_floor(spec, idle_devices(spec.devices)).value() * (1 - 1e-9));
    if (with_losses) {
      SimulatedFleet fleet(spec.devices, spec.server(), spec.wire, drawn.churn(spec, step));
      (void)run(fleet, 2);
    }
  } catch (const InputError&) { return false; } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return true;
}

// jobs/hunt.sh tries others.
constexpr const char* kOthers = "CLEAVE_FLEETS";

TEST(AnyFleet, StepsEndNoSoonerThanTheirBound) {
  expect_of_drawn(kOthers, all_or_few(16, 3), 2, [](std::uint64_t seed) { return ends(seed, false); });
}

TEST(AnyFleet, StepsEndWhateverIsLost) {
  expect_of_drawn(kOthers, all_or_few(16, 3), 3, [](std::uint64_t seed) { return ends(seed, true); });
}

}  // namespace
}  // namespace cleave::sched
