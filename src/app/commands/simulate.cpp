// cleave simulate: a training step in virtual time, without numbers, by the scheduler that `train` runs; and what other
// systems take for it, under the same accounting.
#include <fmt/format.h>

#include <cstdio>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/config/nearest.hpp"
#include "cleave/rivals/registry.hpp"
#include "cleave/telemetry/progress.hpp"
#include "cli/result_file.hpp"
#include "commands/commands.hpp"
#include "output/simulation_record.hpp"
#include "output/study.hpp"

namespace cleave::app {

namespace {

// The systems asked for, in that order; `all` is every one.
std::vector<std::unique_ptr<rivals::System>> systems_of(const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<rivals::System>> systems;
  std::vector<Issue> faults;
  for (const std::string& name : names.empty() ? std::vector<std::string>{"cleave"} : names) {
    if (name == "all") {
      for (auto& system : rivals::all_systems()) systems.push_back(std::move(system));
      continue;
    }
    systems.push_back(rivals::find_system(name));
    if (systems.back()) continue;
    std::vector<std::string> known{"all"};
    for (const auto& system : rivals::all_systems()) known.push_back(system->name());
    faults.push_back({.file = {},
                      .line = 0,
                      .key = {},
                      .message = fmt::format("there is no system '{}'", name),
                      .hint = config::hint_for(name, known)});
  }
  if (!faults.empty()) throw InputError(std::move(faults));
  return systems;
}

}  // namespace

int simulate(const CommandLine& line) {
  const Input input = read_input(only_input(line), line.overrides, Needs::no_data);
  refuse_result_over(input, line.json);
  need_folder_of_result(line.json);
  const std::vector<std::unique_ptr<rivals::System>> systems = systems_of(line.systems);
  if (line.dry_run) {
    std::printf("%s", input.effective.c_str());
    return 0;
  }
  SteadyClock clock;
  telemetry::Progress progress(stderr, clock, progress_of_short_work(line.quiet));
  rivals::StudyInput study = study_of(input);
  SimulationRecord record(line, input, study, progress);
  study.progress = [&](const std::string& text) { record.tell(text); };

  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const bool json_alone = is_standard_output(line.json);
  if (!json_alone) std::puts(table_head().c_str());
  for (const auto& system : systems) {
    record.watch(system->name());
    const rivals::SystemReport report = system->simulate(study);
    out.push_back(to_json(report));
    record.keep_layout(report);
    progress.drop();
    if (!json_alone) std::puts(table_row(report).c_str());
    std::fflush(stdout);
  }
  if (!line.json.empty()) write_result(line.json, out.dump(1) + "\n");
  if (const auto page = record.store(out)) std::fprintf(json_alone ? stderr : stdout, "report %s\n", page->c_str());
  return 0;
}

}  // namespace cleave::app
