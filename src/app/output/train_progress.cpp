// Wording.
#include "output/train_progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/telemetry/progress.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

constexpr int kBarColumns = 20, kCourseColumns = 32;

std::string bar(double share, bool ascii) {
  const int full = static_cast<int>(share * kBarColumns);
  std::string text;
  for (int i = 0; i < kBarColumns; ++i) text += i < full ? (ascii ? "#" : "█") : (ascii ? "." : "░");
  return text;
}

}  // namespace

void TrainProgress::note(std::int64_t step, const server::StepResult& result, Seconds spent, FleetStatus& fleet) {
  step_ = step;
  last_ = result;
  losses_.push_back(result.outcome.loss);
  const double done = static_cast<double>(step - first_);
  left_ = spent * (static_cast<double>(steps_ - step) / done);
  tokens_per_s_ = done * static_cast<double>(tokens_) / spent.value();
  devices_ = fleet.devices();
  busiest_ = fleet.busiest();
}

std::string TrainProgress::line() const {
  return fmt::format(
      "step {}/{}  loss {:.4f}  emulated {}/step (bound {}, floor {})  real {}/step  {:.0f} tokens/s  devices: {} "
      "used, {}  busiest: {}  ETA {}",
      step_, steps_, last_.outcome.loss, show(last_.time), show(last_.lower_bound), show(last_.floor), show(last_.wall),
      tokens_per_s_, last_.report.devices, devices_, busiest_, show(left_));
}

std::vector<std::string> TrainProgress::panel() const {
  const bool ascii = !telemetry::shows_utf8();
  const double share = static_cast<double>(step_) / static_cast<double>(std::max<std::int64_t>(1, steps_));
  const std::string validation = validation_ < 0 ? "" : fmt::format("  validation {:.4f}", validation_);
  return {fmt::format("step {}/{} {} {:.0f} %  ETA {}", step_, steps_, bar(share, ascii), 100 * share, show(left_)),
          fmt::format("loss {:.4f}{}  {}", last_.outcome.loss, validation,
                      telemetry::sparkline(losses_, kCourseColumns, ascii)),
          fmt::format("emulated {}/step (bound {}, floor {})  real {}/step  {:.0f} tokens/s", show(last_.time),
                      show(last_.lower_bound), show(last_.floor), show(last_.wall), tokens_per_s_),
          fmt::format("devices: {} used, {}  busiest: {}", last_.report.devices, devices_, busiest_)};
}

}  // namespace cleave::app
