// The data of the page, read from the files of run folders, and the command.
#include "output/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "cli/json_depth.hpp"
#include "cli/one_file.hpp"
#include "cli/result_file.hpp"
#include "commands/commands.hpp"
#include "output/report_assets.hpp"
#include "output/run_files.hpp"

namespace cleave::app {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// More steps than this are thinned out; no chart has as many pixels.
constexpr std::size_t kMaxRows = 2'000;
/// Of devices too, and of a sweep's points.
constexpr std::size_t kMaxDevices = 1'200;
constexpr std::size_t kMaxPoints = 2'000;

std::optional<std::string> read_if_there(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  return read_file(file);
}

// Where a folder may not be looked into, what it holds is not known.
void refuse_unreadable(const fs::path& folder) {
  std::error_code error;
  (void)fs::directory_iterator(folder, error);
  if (error == std::errc::permission_denied)
    throw InputError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
}

// Discarded where it is no JSON, or nested as nothing is that a run writes.
ordered_json parsed_json(const std::string& text) {
  if (json_depth(text) > kDeepestJson) return ordered_json::value_t::discarded;
  return ordered_json::parse(text, nullptr, false);
}

// Fields of the page's charts; the rest of a line stays out.
ordered_json row_of(const ordered_json& line) {
  ordered_json row(ordered_json::value_t::object);
  for (const char* key :
       {"step",          "loss",      "val_loss",   "lr",          "grad_norm",    "tokens",      "time_s",
        "lower_bound_s", "floor_s",   "wall_s",     "bytes_down",  "bytes_up",     "devices",     "tasklets",
        "lost",          "redone",    "rejected",   "checked",     "verify_s",     "copies",      "late",
        "server_sums",   "witnesses", "recovery_s", "detection_s", "replanning_s", "resending_s", "recomputing_s",
        "energy_J",      "dilation"}) {
    if (line.contains(key)) row[key] = line[key];
  }
  return row;
}

// Real over modelled time of all steps under clock `wall`; none of other clocks.
std::optional<double> dilation_of(const std::vector<ordered_json>& lines) {
  double modelled = 0, real = 0;
  for (const ordered_json& line : lines) {
    const auto dilation = line.find("dilation"), time = line.find("time_s");
    if (dilation == line.end() || time == line.end() || !dilation->is_number() || !time->is_number()) continue;
    modelled += time->get<double>();
    real += time->get<double>() * dilation->get<double>();
  }
  return modelled > 0 ? std::optional(real / modelled) : std::nullopt;
}

void add_metrics(ordered_json& run, const std::string& text) {
  std::vector<ordered_json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    ordered_json object = parsed_json(line);
    if (object.is_object() && object.contains("step")) lines.push_back(std::move(object));  // a torn line is no step
  }
  ordered_json totals(ordered_json::value_t::object);
  for (const char* key : {"tokens",      "time_s",       "lower_bound_s", "floor_s",       "wall_s",     "bytes_down",
                          "bytes_up",    "tasklets",     "lost",          "redone",        "rejected",   "recovery_s",
                          "detection_s", "replanning_s", "resending_s",   "recomputing_s", "energy_J",   "checked",
                          "verify_s",    "copies",       "late",          "witnesses",     "server_sums"}) {
    double sum = 0;
    for (const ordered_json& line : lines) {
      if (line.contains(key) && line[key].is_number()) sum += line[key].get<double>();
    }
    totals[key] = sum;
  }
  if (const std::optional<double> dilation = dilation_of(lines)) totals["dilation"] = *dilation;
  run["totals"] = std::move(totals);
  const std::size_t stride = lines.size() / kMaxRows + 1;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i % stride == 0 || i + 1 == lines.size() || lines[i].contains("val_loss"))
      run["metrics"].push_back(row_of(lines[i]));
  }
  run["one_row_in"] = stride;
}

std::string plural(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Every k-th device of a fleet that is larger than any chart; sums by profile (`groups`) stay those of all.
void thin_out_devices(ordered_json& timeline) {
  const ordered_json& all = timeline["devices"];
  const std::size_t stride = (all.size() + kMaxDevices - 1) / kMaxDevices;
  timeline["fleet_size"] = all.size();
  timeline["one_device_in"] = std::max<std::size_t>(1, stride);
  if (stride <= 1) return;
  ordered_json some = ordered_json::array();
  for (std::size_t i = 0; i < all.size(); i += stride) some.push_back(all[i]);
  timeline["devices"] = std::move(some);
}

ordered_json parsed_list(const fs::path& file, const std::string& text, bool list) {
  ordered_json whole = parsed_json(text);
  if (list ? !whole.is_array() : !whole.is_object())
    throw InputError(fmt::format("{} is not what cleave writes", file.string()), "remove it, or write it again");
  return whole;
}

void add_sweep(ordered_json& run, const fs::path& file, const std::string& text) {
  ordered_json sweep = parsed_list(file, text, false);
  ordered_json& rows = sweep["rows"];
  if (!rows.is_array() || !sweep["grid"].is_array())
    throw InputError(fmt::format("{} is not what bench/sweep.py writes", file.string()));
  sweep["rows_in_all"] = rows.size();
  if (rows.size() > kMaxPoints) rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(kMaxPoints), rows.end());
  run["about"] = fmt::format("sweep of {}: {} of {} points", sweep.value("command", std::string("?")),
                             sweep.value("points_done", 0), sweep.value("points", 0));
  run["sweep"] = std::move(sweep);
}

std::string name_of(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return (whole.filename().empty() ? whole.parent_path() : whole).filename().string();
}

ordered_json read_run(const fs::path& folder) {
  ordered_json run{{"name", name_of(folder)}, {"about", ""}};
  run["metrics"] = ordered_json::array();
  run["totals"] = ordered_json::object();
  run["systems"] = ordered_json::array();
  run["timeline"] = nullptr;
  run["sweep"] = nullptr;
  const auto metrics = read_if_there(folder / "metrics.jsonl");
  const auto systems = read_if_there(folder / "simulate.json");
  const auto sweep = read_if_there(folder / "sweep.json");
  if (!metrics && !systems && !sweep) {
    refuse_unreadable(folder);
    throw InputError(fmt::format("{} holds neither metrics.jsonl nor simulate.json nor sweep.json", folder.string()),
                     "give the folder of a run (output.dir), of simulate --output, or of bench/sweep.py");
  }
  if (metrics) {
    add_metrics(run, *metrics);
    const ordered_json& rows = run["metrics"];
    run["about"] = "trained: " + plural(rows.empty() ? 0 : rows.back().value("step", std::size_t{0}), "step");
  }
  if (systems) {
    run["systems"] = parsed_list(folder / "simulate.json", *systems, true);
    if (!metrics) run["about"] = "simulated: one training step by " + plural(run["systems"].size(), "system");
  }
  if (sweep) add_sweep(run, folder / "sweep.json", *sweep);
  if (const auto text = read_if_there(folder / "timeline.json")) {
    ordered_json timeline = parsed_json(*text);
    if (timeline.is_object() && timeline.value("format", 0) == 2) {
      run["about"] =
          fmt::format("{} on {}, cleave {}", run["about"].get<std::string>(),
                      plural(timeline["devices"].size(), "device"), timeline.value("cleave", std::string("?")));
      thin_out_devices(timeline);
      run["timeline"] = std::move(timeline);
    }
  }
  run["layout"] = nullptr;
  if (const auto text = read_if_there(folder / "layout.json"))
    run["layout"] = parsed_list(folder / "layout.json", *text, false);
  run["verification"] = nullptr;
  if (const auto text = read_if_there(folder / "profile.json"))
    run["profile"] = parsed_list(folder / "profile.json", *text, false);
  if (const auto text = read_if_there(folder / "verification.json"))
    run["verification"] = parsed_list(folder / "verification.json", *text, false);
  run["input"] = read_if_there(folder / "input.yaml").value_or("");
  return run;
}

// JSON inside a script element: "</" must not end it.
std::string for_script(const ordered_json& data) {
  const std::string text = data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string page_of(const std::vector<fs::path>& runs) {
  // An object from the start: where memory runs out while the library makes one of null, its destructor crashes.
  ordered_json data(ordered_json::value_t::object);
  data["runs"] = ordered_json::array();
  for (const fs::path& run : runs) {
    try {
      data["runs"].push_back(read_run(run));
    } catch (const nlohmann::json::exception& error) {
      throw InputError(fmt::format("{} holds files that are not what cleave writes: {}", run.string(), error.what()));
    }
  }
  std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  page +=
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n";
  page += "<title>cleave</title>\n<style>\n";
  page.append(assets::kChartsCss).append("\n").append(assets::kPageCss).append("</style></head>\n<body>\n");
  page.append(assets::kPageHtml).append("<script type=\"application/json\" id=\"data\">");
  page.append(for_script(data)).append("</script>\n<script>\n");
  page.append(assets::kChartsJs)
      .append("\n</script>\n<script>\n'use strict';\n{\n")
      .append(assets::kPageJs)
      .append("}\n</script>\n</body></html>\n");
  return page;
}

}  // namespace

void write_report(const std::vector<fs::path>& runs, const fs::path& file) { replace_file(file, page_of(runs)); }

int report(const CommandLine& line) {
  if (line.files.empty()) throw InputError("report takes run folders", "cleave report RUN_FOLDER...");
  const std::vector<fs::path> runs(line.files.begin(), line.files.end());
  const fs::path file = !line.output.empty() ? fs::path(line.output)
                        : runs.size() == 1   ? runs.front() / "report.html"
                                             : fs::path("report.html");
  for (const fs::path& run : runs) {
    for (const std::string_view name : kRecordsOfRun) refuse_one_file(run / name, file);
    for (const std::string_view name : kOtherFilesOfRun) {
      if (name != "report.html") refuse_one_file(run / name, file);
    }
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    for (const checkpoint::CheckpointFile& saved : checkpoint::find_checkpoints(run)) refuse_one_file(saved.path, file);
    refuse_one_file(run / "sweep.json", file);
  }
  write_result(file.string(), page_of(runs));
  if (!is_standard_output(file.string())) std::printf("%s\n", file.string().c_str());
  return 0;
}

}  // namespace cleave::app
