// The recurrences over a tasklet's panels.
#include "throttle.hpp"

#include <algorithm>

namespace cleave::device {

Throttle::Throttle(const comm::HostedDevice& device, std::uint64_t seed)
    : device_(device), jitter_(seed, Purpose::jitter, static_cast<std::uint32_t>(device.id.value)) {}

Timeline Throttle::admit(Seconds arrival, const comm::TaskView& task) {
  const double factor = task.header.rate_factor;
  const BytesPerSecond downlink(device_.downlink.value() * factor), uplink(device_.uplink.value() * factor);
  const FlopsPerSecond compute(device_.compute.value() * factor);

  // Two draws a tasklet, addressed by its number, so that no other tasklet changes them.
  const auto draw = 2 * static_cast<std::uint64_t>(task.header.tasklet.value);
  const Seconds down_latency = device_.latency + device_.jitter * jitter_.uniform(draw);
  const Seconds up_latency = device_.latency + device_.jitter * jitter_.uniform(draw + 1);

  std::int64_t total = 0, through = 0;
  for (const comm::PanelCost& panel : task.schedule) total += panel.down_bytes;

  const Seconds start = arrival + task.header.delay;
  Seconds received = start;
  link_free_ = std::max(link_free_, start);
  for (const comm::PanelCost& panel : task.schedule) {
    if (panel.down_bytes > 0) {
      through += panel.down_bytes;
      link_free_ += Bytes(panel.down_bytes) / downlink;
      const double share = static_cast<double>(through) / static_cast<double>(total);
      received = std::max(start + task.header.nic * share, link_free_) + down_latency;
    }
    processor_free_ = std::max(received, processor_free_) + Flops(panel.flops) / compute;
    if (panel.up_bytes > 0) { uplink_free_ = std::max(processor_free_, uplink_free_) + Bytes(panel.up_bytes) / uplink; }
  }
  return {received, processor_free_, std::max(processor_free_, uplink_free_) + up_latency};
}

}  // namespace cleave::device
