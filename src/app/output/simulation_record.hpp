// SimulationRecord: what `simulate` leaves in a folder, where it was asked for one: simulate.json, the input, and of
// the product's own step timeline.json, trace.json; and report.html, which shows the systems side by side.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/rivals/system.hpp"
#include "cleave/telemetry/progress.hpp"
#include "cli/command_line.hpp"
#include "input/input.hpp"
#include "output/fleet_status.hpp"
#include "output/timeline.hpp"

namespace cleave::app {

class SimulationRecord {
 public:
  /// Asked for by --output FOLDER, or by output.dir on the command line. `study` and `progress` must outlive the
  /// record. Errors: InputError where the folder holds a training run.
  SimulationRecord(const CommandLine& line, const Input& input, rivals::StudyInput& study,
                   telemetry::Progress& progress);

  /// The system that is simulated next: its progress is shown, and the first of the product's own is recorded.
  void watch(const std::string& system);
  /// Shows how far the system is; "step 3 of 100" stays in front of the operations of the next step.
  void tell(const std::string& text);
  /// Of a system that is done: a layout in stages goes into the folder, and from there into the report.
  void keep_layout(const rivals::SystemReport& report);
  /// Writes the folder; the page's path, if there is one. Errors: EnvironmentError.
  [[nodiscard]] std::optional<std::filesystem::path> store(const nlohmann::ordered_json& systems);

 private:
  std::optional<std::filesystem::path> folder_;
  std::string effective_;
  rivals::StudyInput& study_;
  telemetry::Progress& progress_;
  std::int64_t told_ = 0;
  std::string done_;  // of the system's steps
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<FleetStatus> status_;
  bool recorded_ = false;
  std::string layout_;  // layout.json
};

}  // namespace cleave::app
