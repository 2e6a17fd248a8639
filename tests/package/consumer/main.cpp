// Plans one product of OPT-125M over eight unlike devices, and prints its finish and its lower bound.
#include <cleave/fleet/profile.hpp>
#include <cleave/plan/plan.hpp>
#include <cstdio>

int main() {
  using namespace cleave;
  const fleet::DeviceGroup phones{.name = "phone",
                                  .count = 8,
                                  .compute_flops = {0.7e12, 2.2e12},
                                  .memory_bytes = {5e8, 5e8},
                                  .downlink_bytes = {1e7, 1e8},
                                  .uplink_bytes = {5e6, 1e7},
                                  .latency_s = {0.01, 0.01}};
  std::vector<plan::DeviceState> devices;
  for (const auto& profile : fleet::draw_devices({phones}, 42)) devices.push_back({profile, {}, {}, {}});
  const plan::Work fc1{.kind = plan::WorkKind::gemm, .gemm = {.m = 1024, .n = 3072, .k = 768}, .attention = {}};
  const plan::OperationPlan plan = plan::plan_operation(fc1, devices, {});
  std::printf("%zu tasklets, %.3f s, bound %.3f s\n", plan.tasklets.size(), plan.time.value(),
              plan.lower_bound.value());
  return plan.tasklets.empty() || plan.time < plan.lower_bound ? 1 : 0;
}
