// Listening to the product's step, and the files.
#include "output/simulation_record.hpp"

#include <fmt/format.h>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "output/output_folder.hpp"
#include "output/plan_stages.hpp"
#include "output/report.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

std::optional<fs::path> folder_of(const CommandLine& line, const Input& input) {
  if (!line.output.empty() && input.output_on_command_line)
    throw InputError(fmt::format("--output {} and output.dir are two names for one folder", line.output));
  if (!line.output.empty()) return fs::path(line.output);
  return input.output_on_command_line ? std::optional(input.output) : std::nullopt;
}

bool is_own(const std::string& system) { return system == "cleave" || system == "cleave-paper"; }

}  // namespace

SimulationRecord::SimulationRecord(const CommandLine& line, const Input& input, rivals::StudyInput& study,
                                   telemetry::Progress& progress)
    : folder_(folder_of(line, input)), effective_(input.effective), study_(study), progress_(progress) {
  if (!folder_) return;
  std::error_code error;
  if (fs::exists(*folder_ / "metrics.jsonl", error)) {
    throw InputError(fmt::format("{} holds a training run", folder_->string()),
                     "give another folder: --output FOLDER, or output.dir=FOLDER");
  }
  refuse_unfit_folder(*folder_, input);
  make_folders(*folder_);
}

void SimulationRecord::tell(const std::string& text) {
  done_ = text + "; ";
  progress_.update(++told_, text);
}

void SimulationRecord::watch(const std::string& system) {
  done_.clear();
  study_.observer = nullptr;
  study_.step_begins = {};
  study_.step_done = {};
  if (!is_own(system)) return;
  if (folder_ && !recorded_) {
    timeline_ = std::make_unique<Timeline>(study_.devices);
    study_.step_begins = [this](std::int64_t step) { timeline_->begin_part(step + 1, false); };
    study_.step_done = [this](const sched::StepReport& report, std::span<const sched::Usage> usage) {
      timeline_->end_part(&report);
      timeline_->finish(usage, Bytes(0), Bytes(0));
    };
  }
  status_ = std::make_unique<FleetStatus>(study_.devices, recorded_ ? nullptr : timeline_.get());
  status_->on_operation([this, system](std::size_t begun, std::size_t all) {
    progress_.update(++told_, fmt::format("{}: {}operation {} of {} on {} devices", system, done_, begun, all,
                                          study_.devices.size()));
  });
  study_.observer = status_.get();
  recorded_ = recorded_ || folder_.has_value();
}

void SimulationRecord::keep_layout(const rivals::SystemReport& report) {
  if (!folder_ || !report.stages) return;
  const model::StepGraph graph = model::build_step(study_.model, sched::graph_options(study_, 1));
  layout_ = layout_json(plan::stage_work_of(graph, study_.wire), *report.stages, study_.devices).dump() + "\n";
}

std::optional<fs::path> SimulationRecord::store(const nlohmann::ordered_json& systems) {
  if (!folder_) return std::nullopt;
  std::error_code error;
  const bool again = fs::exists(*folder_ / "simulate.json", error);
  const auto leave_out = [&](const char* name) {
    if (again) fs::remove(*folder_ / name, error);
  };
  replace_file(*folder_ / "simulate.json", systems.dump(1) + "\n");
  replace_file(*folder_ / "input.yaml", effective_);
  // What this one does not write is of an earlier simulation in this folder.
  if (layout_.empty()) {
    leave_out("layout.json");
  } else {
    replace_file(*folder_ / "layout.json", layout_);
  }
  if (timeline_) {
    timeline_->store(*folder_ / "timeline.json");
    timeline_->store_trace(*folder_ / "trace.json");
  } else {
    leave_out("timeline.json");
    leave_out("trace.json");
  }
  const fs::path page = *folder_ / "report.html";
  write_report({*folder_}, page);
  return page;
}

}  // namespace cleave::app
