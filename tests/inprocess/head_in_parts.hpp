// Settings of runs whose head fits no device and goes in parts.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/model/step_text.hpp"
#include "run.hpp"

namespace cleave::testing_run {

// Three vocabulary blocks, the last one short, and no whole number of K blocks.
inline Setting with_vocabulary() {
  Setting s = small_setting();
  s.model.n_layer = 2;
  s.model.vocab_size = 4000;
  s.model.seq_len = s.model.max_pos = 130;
  s.batch = 3;
  return s;
}

inline model::StepGraph graph_of(const Setting& s) {
  return model::graph_of_stages({s.model, s.batch, s.freeze, s.wire, s.wire.boundary});
}

inline std::optional<plan::StagePlan> plan_of(const Setting& s) {
  return plan::find_stages(plan::stage_work_of(graph_of(s), s.wire), s.devices,
                           sched::stage_scheduler_options(options_of(s)).stages);
}

// The same with the most memory a device for which the head is in so many parts.
inline Setting in_parts(Setting s, std::vector<fleet::DeviceProfile> devices, std::int64_t parts) {
  s.devices = std::move(devices);
  s.device_ranks = 2;
  s.layout = sched::Layout::stages;
  const auto plan_with = [&](double memory) {
    set_memory(s, static_cast<std::int64_t>(memory));
    return plan_of(s);
  };
  constexpr double kCoarse = 0.75;
  const auto enough = [&](const std::optional<plan::StagePlan>& plan) { return plan && plan->head_parts < parts; };
  double most = 8e6;
  while (most > 1e5 && enough(plan_with(most * kCoarse))) most *= kCoarse;
  for (double memory = most; memory > 1e5; memory *= 0.97) {
    const std::optional<plan::StagePlan> plan = plan_with(memory);
    if (!plan || plan->head_parts > parts) break;
    if (plan->head_parts == parts) return s;
  }
  ADD_FAILURE() << "no memory brings " << parts << " parts";
  return s;
}

}  // namespace cleave::testing_run
