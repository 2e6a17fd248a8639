// Files of a run.
#include "output/run_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "output/loss_json.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

nlohmann::ordered_json by_name(const server::PhaseTimes& times) {
  nlohmann::ordered_json named(nlohmann::ordered_json::value_t::object);
  for (std::size_t i = 0; i < times.size(); ++i) {
    named[std::string(server::name_of(static_cast<server::Phase>(i)))] = times[i].value();
  }
  return named;
}

// Names of hosts are bytes that anybody chose: what is no UTF-8 becomes U+FFFD.
std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

bool holds_training(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "metrics.jsonl", error) || !checkpoint::find_checkpoints(folder).empty();
}

bool holds_simulation(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "simulate.json", error);
}

}  // namespace

RunFolder RunFolder::create(const fs::path& folder) {
  std::optional<fs::path> moved;
  if (holds_training(folder) || holds_simulation(folder)) {
    const FolderLock other_runs = FolderLock::take(folder);  // one that still writes is not moved away
    moved = move_run(folder);
  }
  make_folders(folder);
  FolderLock lock = FolderLock::take(folder);
  remove_verdict(folder);  // of a run of which nothing else is left
  RunFolder run(folder, std::move(lock), telemetry::JsonLines::create(folder / "metrics.jsonl"));
  run.moved_ = moved;
  return run;
}

RunFolder RunFolder::resume(const fs::path& folder, const Continuation& how, std::optional<FolderLock> held) {
  std::optional<fs::path> simulation;
  if (!held && holds_simulation(folder) && !holds_training(folder)) simulation = move_run(folder);
  make_folders(folder);
  FolderLock lock = held ? std::move(*held) : FolderLock::take(folder);
  if (!fs::exists(how.from))
    throw EnvironmentError("go on from", how.from.string(),
                           "it is gone: another run wrote there meanwhile, and deleted it");
  std::optional<CarriedOut> carried_out;
  std::int64_t lines = 0, damaged = 0;
  Seconds time{0};
  if (const auto verdict = find_verdict(folder)) {
    carried_out = {*verdict, checkpoint::set_aside_after(folder, verdict->after_step)};
    RunFolder before(folder, std::move(lock),
                     telemetry::JsonLines::open_resumed(folder / "metrics.jsonl", [](std::int64_t) { return true; }));
    damaged = before.metrics_.damaged();
    before.take_back(verdict->after_step, verdict->devices);
    lock = std::move(before.lock_);
    lines = before.taken_back_;
    time = before.taken_back_time_;
  }
  const Branched branched = begin_branch(folder, how);
  RunFolder run(folder, std::move(lock),
                telemetry::JsonLines::open_resumed(folder / "metrics.jsonl",
                                                   [&](std::int64_t line) { return line <= how.step; }));
  run.damaged_lines_ = damaged + run.metrics_.damaged();
  run.moved_ = branched.set_aside ? branched.set_aside : simulation;
  run.resumed_from_ = branched.from;
  run.carried_out_ = std::move(carried_out);
  if (!branched.set_aside) {
    run.taken_back_ = lines;
    run.taken_back_time_ = time;
  }
  return run;
}

void RunFolder::require_own() const {
  if (lock_.is_anothers(folder_))
    throw EnvironmentError("write", folder_.string(),
                           "the folder of this run was moved or removed, and another run has begun there");
}

void RunFolder::store_input(const std::string& effective) const { replace_file(folder_ / "input.yaml", effective); }

void RunFolder::store_ranks(const std::vector<server::RankInfo>& ranks) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  list.push_back({{"rank", 0}, {"pid", ::getpid()}, {"host", host_name()}, {"devices", nlohmann::json::array()}});
  for (const server::RankInfo& rank : ranks) {
    if (rank.rank == 0) continue;
    nlohmann::json devices = nlohmann::json::array();
    for (const DeviceId id : rank.devices) devices.push_back(id.value);
    list.push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"host", rank.host}, {"devices", devices}});
    if (rank.absent.empty()) continue;
    list.back()["absent"] = rank.absent;
    if (rank.pid == 0) list.back()["pid"] = nullptr;  // it never said; 0 would name a process group
  }
  replace_file(folder_ / "ranks.json", text_of(list));
}

void RunFolder::store_verification(const server::Verification& terms, const server::VerificationReport& report,
                                   const std::vector<DeviceId>& left_out) const {
  const auto number = [](double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr; };
  nlohmann::ordered_json wrong = nlohmann::ordered_json::array(), devices = nlohmann::ordered_json::array();
  for (const server::Finding& f : report.wrong) {
    wrong.push_back({{"device", f.device.value},
                     {"operation", f.operation},
                     {"tasklet", f.tasklet.value},
                     {"checked", f.checked},
                     {"digest", f.digest},
                     {"error_to_bound", number(f.ratio)}});
  }
  for (const DeviceId id : left_out) devices.push_back(id.value);
  const nlohmann::ordered_json all{{"mode", server::name_of(terms.mode)},
                                   {"fraction", terms.fraction},
                                   {"blocks", report.blocks},
                                   {"checked", report.checked},
                                   {"suspected", report.suspected},
                                   {"cleared", report.cleared},
                                   {"largest_error_to_bound", report.largest_ratio},
                                   {"slip_probability", number(server::slip_probability(terms, report))},
                                   {"missed_share_95", number(server::missed_share(terms, report.blocks))},
                                   {"verify_s", report.time.value()},
                                   {"device_compute_s", report.device_time.value()},
                                   {"left_out", devices},
                                   {"wrong", wrong}};
  replace_file(folder_ / "verification.json", text_of(all));
}

void RunFolder::store_profile(const server::Profile& profile) const {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const auto& [type, times] : profile.by_type()) types.push_back({{"type", type}, {"phases_s", by_name(times)}});
  const nlohmann::ordered_json text{
      {"steps", profile.steps()}, {"phases_s", by_name(profile.all())}, {"operations", types}};
  replace_file(folder_ / "profile.json", text_of(text));
}

void RunFolder::append(std::int64_t step, std::int64_t tokens, const server::StepResult& r,
                       std::optional<double> val_loss) {
  telemetry::JsonObject line;
  line.add("step", step).add("loss", r.outcome.loss).add("lr", r.outcome.lr).add("grad_norm", r.outcome.grad_norm);
  line.add("tokens", tokens)
      .add("time_s", r.time.value())
      .add("lower_bound_s", r.lower_bound.value())
      .add("floor_s", r.floor.value())
      .add("wall_s", r.wall.value());
  if (r.dilation) line.add("dilation", *r.dilation);
  if (!r.dilation_by_host.empty()) {
    // Names of hosts may be any bytes.
    line.add_json("dilation_by_host",
                  nlohmann::json(r.dilation_by_host).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  line.add("bytes_down", r.report.bytes_down.value()).add("bytes_up", r.report.bytes_up.value());
  line.add("devices", r.report.devices)
      .add("tasklets", r.report.tasklets)
      .add("lost", r.report.lost)
      .add("redone", r.report.redone);
  line.add("rejected", r.report.rejected)
      .add("recovery_s", r.report.recovery.value())
      .add("energy_J", r.report.energy.value());
  if (r.promoted_rows) line.add("promoted_rows", *r.promoted_rows);
  if (r.phases) line.add_json("phases_s", by_name(*r.phases).dump());
  line.add("checked", r.verification.checked).add("verify_s", r.verification.time.value());
  sched::Loss sum;
  nlohmann::ordered_json losses(nlohmann::ordered_json::value_t::array);
  for (const sched::Loss& loss : r.report.losses) {
    sum.detection += loss.detection;
    sum.planning += loss.planning;
    sum.resending += loss.resending;
    sum.recomputing += loss.recomputing;
    losses.push_back(to_json(loss, loss.name));
  }
  line.add("detection_s", sum.detection.value())
      .add("replanning_s", sum.planning.value())
      .add("resending_s", sum.resending.value())
      .add("recomputing_s", sum.recomputing.value())
      .add("copies", r.report.copies)
      .add("late", r.report.late)
      .add("server_sums", r.report.server_sums)
      .add("witnesses", r.report.witnesses);
  if (!losses.empty()) line.add_json("losses", losses.dump());
  if (val_loss) line.add("val_loss", *val_loss);
  if (taken_back_ > 0) line.add("taken_back", taken_back_).add("taken_back_s", taken_back_time_.value());
  taken_back_ = 0;
  taken_back_time_ = Seconds(0);
  held_back_.push_back(std::move(line));
  write_held_back();
}

void RunFolder::write_held_back() {
  while (!held_back_.empty()) {
    metrics_.append(held_back_.front());
    held_back_.erase(held_back_.begin());
  }
}

void RunFolder::sync_metrics() {
  write_held_back();
  metrics_.sync();
}

void RunFolder::take_back(std::int64_t step, const std::vector<DeviceId>& devices) {
  const fs::path path = folder_ / "metrics.jsonl";
  nlohmann::ordered_json lines = nlohmann::ordered_json::array(), ids = nlohmann::ordered_json::array();
  const auto take = [&](std::string_view text) {
    nlohmann::ordered_json line = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer() ||
        line["step"].get<std::int64_t>() <= step)
      return false;
    ++taken_back_;
    taken_back_time_ += Seconds(line.value("time_s", 0.0) + line.value("taken_back_s", 0.0));
    lines.push_back(std::move(line));
    return true;
  };
  std::istringstream written(read_file(path));
  for (std::string text; std::getline(written, text);) (void)take(text);
  std::erase_if(held_back_, [&](const telemetry::JsonObject& line) { return take(line.text()); });
  for (const DeviceId id : devices) ids.push_back(id.value);
  telemetry::JsonObject object;
  object.add("after_step", step).add_json("devices", ids.dump()).add_json("lines", lines.dump());
  auto record = telemetry::JsonLines::open_resumed(folder_ / "taken_back.jsonl", [](std::int64_t) { return true; });
  // A process that was killed after this line, and before the next ones, is repeated by the one after it.
  const bool was_written = read_file(folder_ / "taken_back.jsonl").ends_with(object.text() + "\n");
  if (!lines.empty() && !was_written) record.append(object);
  record.sync();
  metrics_ = telemetry::JsonLines::open_resumed(path, [&](std::int64_t line) { return line <= step; });
  remove_verdict(folder_);
}

}  // namespace cleave::app
