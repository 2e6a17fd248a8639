// The churn generator: alternating exponential sessions and absences, plus slow and lying devices.
#include "cleave/fleet/churn.hpp"

#include <algorithm>
#include <tuple>

#include "cleave/base/random.hpp"

namespace cleave::fleet {

ChurnTrace draw_churn(const ChurnModel& model, std::int64_t devices, Seconds horizon) {
  ChurnTrace trace;
  for (std::int64_t d = 0; d < devices; ++d) {
    const Random random(model.seed, Purpose::churn, static_cast<std::uint32_t>(d));
    const DeviceId device(d);
    if (random.uniform(0) < model.slow_fraction)
      trace.push_back({Seconds(0), device, ChurnKind::slow, model.slow_factor});
    if (random.uniform(1) < model.faulty_fraction)
      trace.push_back({Seconds(0), device, ChurnKind::faulty, model.faults.share, model.faults.kind});
    if (model.mean_session.value() <= 0) continue;
    Seconds at{0};
    for (std::uint64_t draw = 2; at < horizon; draw += 2) {
      at += model.mean_session * random.exponential(draw);
      if (at >= horizon) break;
      trace.push_back({at, device, ChurnKind::leave, 1.0});
      at += model.mean_absence * random.exponential(draw + 1);
      if (at < horizon) trace.push_back({at, device, ChurnKind::join, 1.0});
    }
  }
  std::stable_sort(trace.begin(), trace.end(), [](const ChurnEvent& a, const ChurnEvent& b) {
    return std::tuple(a.at.value(), a.device) < std::tuple(b.at.value(), b.device);
  });
  return trace;
}

}  // namespace cleave::fleet
