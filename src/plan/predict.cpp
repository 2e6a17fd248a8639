// A plan's tasklets as streams of the time model.
#include "predict.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "cleave/plan/panels.hpp"
#include "cleave/timing/alone.hpp"

namespace cleave::plan {

Seconds predict_time(const Work& work, std::span<const TaskletPlan> tasklets, std::span<const DeviceState> devices,
                     const fleet::ServerProfile& server) {
  // Without an interface to share, and with one tasklet each, devices know nothing of each other.
  std::unordered_map<DeviceId, int> counts;
  bool alone = std::isinf(server.nic_out.value()) && std::isinf(server.nic_in.value());
  Seconds last{0};
  for (const TaskletPlan& tasklet : tasklets) {
    alone = alone && ++counts[tasklet.device] == 1;
    last = std::max(last, tasklet.time);
  }
  if (alone) return last;

  std::unordered_map<DeviceId, std::size_t> index;
  for (std::size_t d = 0; d < devices.size(); ++d) index.emplace(devices[d].profile.id, d);
  std::vector<timing::Submission> streams;
  streams.reserve(tasklets.size());
  for (const TaskletPlan& tasklet : tasklets) {
    streams.push_back({index.at(tasklet.device), panel_sequence(work, tasklet), tasklet.resident});
  }
  return timing::time_alone(streams, devices, server);
}

}  // namespace cleave::plan
