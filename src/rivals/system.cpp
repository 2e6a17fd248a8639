// What the systems have in common: the head of a report and its real time.
#include "cleave/rivals/system.hpp"

#include <chrono>

namespace cleave::rivals {

SystemReport System::simulate(const StudyInput& study) const {
  const auto begun = std::chrono::steady_clock::now();
  const auto elapsed = [begun] {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  };
  SystemReport report;
  report.system = name();
  report.devices = static_cast<std::int64_t>(study.devices.size());
  carry_out(study, elapsed, report);
  report.wall = elapsed();
  return report;
}

}  // namespace cleave::rivals
