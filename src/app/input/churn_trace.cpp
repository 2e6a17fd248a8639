// Declarations of a trace's keys.
#include "input/churn_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "input/limits.hpp"

namespace cleave::app {

fleet::InjectedFaultKind read_fault_kind(const config::Section& in, const char* key) {
  return in.choice<fleet::InjectedFaultKind>(
      key, {std::begin(fleet::kInjectedFaultNames), std::end(fleet::kInjectedFaultNames)},
      {.default_value = fleet::InjectedFaultKind::element, .help = "What is wrong with the results of a lie."});
}

fleet::ChurnTrace read_churn_trace(const std::filesystem::path& path, std::int64_t devices) {
  config::Reader reader(config::Document::load(path));
  fleet::ChurnTrace trace;
  reader.root().each("events", {.min_count = 1, .help = "What happens to devices."}, [&](const config::Section& in) {
    fleet::ChurnEvent event;
    event.at = in.seconds("at", {.min = Seconds(0), .help = "Emulated time since the start of the run."});
    event.device =
        DeviceId(in.integer("device", {.min = 0, .max = devices - 1, .help = "Index of the device in the fleet."}));
    event.kind = in.choice<fleet::ChurnKind>("kind",
                                             {{"leave", fleet::ChurnKind::leave},
                                              {"join", fleet::ChurnKind::join},
                                              {"slow", fleet::ChurnKind::slow},
                                              {"hang", fleet::ChurnKind::hang},
                                              {"lie", fleet::ChurnKind::faulty}},
                                             {.help = "What happens."});
    event.factor = in.real("factor", {.default_value = event.factor,
                                      .min = 0.0,
                                      .max = 1.0,
                                      .help = "slow: of every rate; lie: share of results that are wrong."});
    event.fault = read_fault_kind(in, "lie");
    if (event.kind == fleet::ChurnKind::slow && event.factor < kSlowestFactor)
      in.fault("factor", fmt::format("a device cannot run at less than {} of its rates", kSlowestFactor),
               "use kind: hang");
    trace.push_back(event);
  });
  reader.finish();
  std::stable_sort(trace.begin(), trace.end(), [](const fleet::ChurnEvent& a, const fleet::ChurnEvent& b) {
    return std::tuple(a.at, a.device) < std::tuple(b.at, b.device);
  });
  return trace;
}

}  // namespace cleave::app
