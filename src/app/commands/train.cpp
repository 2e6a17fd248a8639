// cleave train: the main job.
//
// Every rank reads the command line and the input, so that bad input ends all of them alike; then rank 0 prepares
// (data, parameters, folder), says whether the run starts, and trains, while the others serve devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/server/checkpointing.hpp"
#include "cleave/server/trainer.hpp"
#include "cleave/telemetry/log.hpp"
#include "cleave/telemetry/progress.hpp"
#include "cli/failures.hpp"
#include "cli/signals.hpp"
#include "cli/want_of_memory.hpp"
#include "commands/commands.hpp"
#include "commands/leftovers.hpp"
#include "commands/memory_check.hpp"
#include "commands/resume.hpp"
#include "commands/session.hpp"
#include "input/input.hpp"
#include "input/run_settings.hpp"
#include "input/run_setup.hpp"
#include "input/training_data.hpp"
#include "output/earlier_checkpoints.hpp"
#include "output/fleet_status.hpp"
#include "output/folder_lock.hpp"
#include "output/output_folder.hpp"
#include "output/report.hpp"
#include "output/run_folder.hpp"
#include "output/set_aside.hpp"
#include "output/timeline.hpp"
#include "output/train_progress.hpp"

namespace cleave::app {

namespace {

namespace fs = std::filesystem;

// A host that keeps up with clock `wall` dilates time by less than this.
constexpr double kKeepsUp = 1.05;

// Everything that the server has ready before the run starts.
struct Prepared {
  Input input;
  TrainingData data;
  server::TrainerOptions options;
  server::MemoryForecast memory;
  server::ParameterStore parameters;
  server::RunState state;
  std::vector<std::string> notices;  // of damaged checkpoints and the like
  std::vector<std::string> chosen;   // what was left open, and is not any more
  std::optional<Continuation> resumed;
  std::optional<FolderLock> lock;  // of the folder, since `resumed` was chosen there
};

Prepared prepare(const CommandLine& line, Input input, const server::DeviceRanks& ranks) {
  Prepared p;
  p.input = std::move(input);
  p.data = load_training_data(p.input);
  if (!p.data.not_evaluated.empty()) p.notices.push_back(p.data.not_evaluated);
  refuse_unfit_folder(p.input.output, p.input);
  const std::vector<Issue> faults = model::find_faults(p.input.step.model);
  if (!faults.empty()) throw InputError(faults);
  sched::StepSpec& step = p.input.step;
  const bool open = step.layout.layout == sched::Layout::automatic;
  const bool emulated = p.input.fleet.clock != server::ClockMode::off;
  sched::LayoutChoice choice = emulated ? sched::choose_layout(step) : sched::layout_without_emulation(step);
  step.layout.layout = choice.layout;
  if (open || !p.input.tiles_since.empty()) p.chosen.push_back(say_layout(p.input, choice.layout));
  if (std::string mode = settle_verification(p.input, choice.layout); !mode.empty())
    p.chosen.push_back(std::move(mode));
  p.options = trainer_options(p.input);
  p.options.stage_plan = std::move(choice.stages);
  p.memory = check_memory(p.input, p.options, ranks);
  // A dry run reads what the run would start from, and draws nothing.
  if (line.dry_run && line.resume.empty() && !p.input.model.init) return p;
  kernels::select_gemm_kernels(*kernels::parse_gemm_kernels(p.options.fleet.gemm_kernels));
  const model::StepGraph shapes = model::build_step(
      p.options.model, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0});
  p.parameters = server::ParameterStore(shapes, p.input.train.seed, p.input.server.threads);
  p.state = {.step = 0, .seed = p.input.train.seed, .tokenizer = p.data.tokenizer, .settings = {}};
  if (const auto& init = p.input.model.init) {
    require_file(*init, "model.init");
    try {
      server::load_parameters(init->resolved, p.parameters);
    } catch (const InputError& error) { throw fault_at(p.input, "model.init", error.what()); }
    const std::string other = server::other_than(p.options.model, checkpoint::read_header(init->resolved).attributes);
    if (!other.empty()) p.notices.push_back(fmt::format("{} is of another model: {}", init->as_written, other));
  }
  if (!line.resume.empty()) {
    auto resumed = resume_run(line, p.input, p.data, p.options, p.parameters, p.notices);
    if (resumed) {
      p.state = std::move(resumed->state);
      p.resumed = std::move(resumed->how);
      p.lock = std::move(resumed->lock);
    }
  }
  p.state.settings = to_text(run_settings(p.input, p.data, p.options.fleet.gemm_kernels));
  return p;
}

std::string describe(const server::MemoryForecast& m) {
  return fmt::format(
      "{} (process {}, its growth {}, parameters and moments {}, {}activations and gradients {}, partial sums {}, "
      "messages {})",
      show(m.server()), show(m.process), show(m.runtime + m.records), show(m.parameters),
      m.history.value() > 0 ? fmt::format("copies of them for verify.rollback {}, ", show(m.history)) : "",
      show(m.activations), show(m.sums), show(m.messages));
}

// Which devices compute in quorum what others did is drawn, so the most that one takes is not known beforehand.
const char* how_much(const Prepared& p) {
  return p.input.verify.mode == server::VerifyMode::quorum ? "about" : "at most";
}

void print_dry_run(const Prepared& p) {
  std::printf("%s", p.input.effective.c_str());
  std::printf("# data: %s\n", p.data.summary.c_str());
  std::printf("# memory of the server: %s; free here: %s\n", describe(p.memory).c_str(),
              show(available_memory()).c_str());
  std::printf("# memory of a device: %s %s (%s)\n", how_much(p), show(p.memory.device_peak).c_str(),
              p.memory.device_name.c_str());
  if (p.resumed)
    std::printf("# resumes after step %lld from %s\n", static_cast<long long>(p.resumed->step),
                p.resumed->from.string().c_str());
  for (const std::string& notice : p.notices) std::printf("# warning: %s\n", notice.c_str());
}

// The training loop on the server.
class Run {
 public:
  Run(const CommandLine& line, Prepared& prepared, Session& session)
      : line_(line),
        p_(prepared),
        session_(session),
        folder_(prepared.resumed ? RunFolder::resume(prepared.input.output, *prepared.resumed, std::move(prepared.lock))
                                 : RunFolder::create(prepared.input.output)),
        pruner_(folder_.path(), folder_.resumed_from()),
        progress_(stderr, clock_,
                  {.mode = line.quiet ? telemetry::ProgressSettings::Mode::quiet
                                      : telemetry::ProgressSettings::Mode::automatic,
                   .plain_every = Seconds(line.verbose ? 0 : 5)}),
        log_({.file = folder_.path() / "log.txt",
              .file_level = line.verbose ? telemetry::LogLevel::debug : telemetry::LogLevel::info,
              .console = stderr,
              .console_level = telemetry::LogLevel::warning,
              .before_console = [this] { progress_.clear(); }}),
        timeline_(prepared.options.devices, std::string(name_of(prepared.input.fleet.clock))),
        status_(prepared.options.devices, &timeline_),
        earlier_(folder_.path(), prepared.parameters, prepared.options.model, prepared.state.settings,
                 [this](const std::string& text) { log_.warning("{}", text); }),
        told_(prepared.input.train.steps, prepared.state.step,
              prepared.input.step.batch * prepared.options.model.seq_len) {
    p_.options.fleet.observer = &status_;
  }

  // `missing`: once goodbye is said, the ranks that did not answer it.
  int operator()(std::optional<std::vector<server::RankInfo>>& missing) {
    const bool finished = is_finished();
    if (!finished || !fs::exists(folder_.path() / "input.yaml")) folder_.store_input(p_.input.effective);
    announce();
    server::Trainer trainer(p_.parameters, p_.options, &session_.devices());
    trainer.use(earlier_);
    trainer_ = &trainer;
    if (p_.resumed && p_.input.verify.rollback > 0) tell_reach(trainer);
    if (!finished) folder_.store_ranks(trainer.ranks());
    for (const server::RankInfo& rank : trainer.ranks()) {
      if (!rank.absent.empty())
        log_.warning("the run starts without rank {}{} and its {} devices: {}", rank.rank,
                     rank.host.empty() ? "" : " on " + rank.host, rank.devices.size(), rank.absent);
    }
    // Whatever ends the training, the device ranks are told.
    const auto leave = [&] { missing = trainer.say_goodbye(Seconds(30)); };
    if (finished) {
      leave();
      renew_report();
      say(fmt::format("nothing is left to do: the run in {} has all of its {} steps", folder_.path().string(),
                      p_.input.train.steps));
      progress_.finish();
      return 0;
    }
    int code = 0;
    try {
      code = train(trainer);
    } catch (...) {
      leave();
      throw;
    }
    leave();
    progress_.finish();
    show_what_happened(trainer);
    conclude(trainer, code);
    return code;
  }

 private:
  void announce() {
    if (folder_.moved() && !p_.resumed)
      log_.warning("the earlier run in {} is now in {}", folder_.path().string(), folder_.moved()->string());
    for (const std::string& notice : p_.notices) log_.warning("{}", notice);
    for (const std::string& choice : p_.chosen) log_.info("{}", choice);
    if (p_.resumed) log_.warning("resuming after step {} from {}", p_.state.step, p_.resumed->from.string());
    if (const std::int64_t damaged = folder_.damaged_lines(); damaged > 0)
      log_.warning("metrics.jsonl had {} damaged line{}, which {} left out", damaged, damaged == 1 ? "" : "s",
                   damaged == 1 ? "is" : "are");
    if (folder_.carried_out()) {
      const auto& [verdict, aside] = *folder_.carried_out();
      log_.warning(
          "the steps after step {} are taken back: device {} had been found out when the process before this one "
          "ended; "
          "their lines are now in taken_back.jsonl",
          verdict.after_step, fmt::join(values_of(verdict.devices), ", "));
      tell_renamed(aside);
    }
    if (folder_.moved() && p_.resumed) {
      log_.warning("what was in {} beside or after that is now in {}, with a copy of its metrics",
                   folder_.path().string(), folder_.moved()->string());
    }
    if (session_.size() > 1 && !comm::launcher_keeps_survivors()) {
      log_.warning(
          "started without --enable-recovery: if one device rank dies, mpirun ends all of them (jobs/run.sh sets it)");
    }
    std::int64_t count = 0;
    for (const server::Parameter& parameter : p_.parameters.parameters()) count += parameter.rows * parameter.cols;
    say(fmt::format("{} with {} parameters; {}; {} devices on {} rank{}", p_.options.model.family, count,
                    p_.data.summary, p_.options.devices.size(), std::max(1, session_.size() - 1),
                    session_.size() > 2 ? "s" : ""));
    log_.info("memory of the server: predicted {}", describe(p_.memory));
    log_.info("memory of a device: {} {} ({})", how_much(p_), show(p_.memory.device_peak), p_.memory.device_name);
  }

  // All steps are done: what an earlier process wrote of them stays.
  bool is_finished() const { return p_.resumed && p_.state.step >= p_.input.train.steps; }

  // How far steps can be taken back until this process has run some of its own.
  void tell_reach(server::Trainer& trainer) {
    const std::int64_t step = p_.state.step;
    const auto known = trainer.remember_parts(step, p_.state.parts);
    const auto found = known && *known < step ? earlier_.find(*known, step) : std::nullopt;
    const std::string because =
        !known  ? fmt::format("{} does not say who had a part in earlier steps", p_.resumed->from.filename().string())
        : found ? fmt::format("from {}{}", checkpoint::checkpoint_path("", *found).string(),
                              *found > *known ? ", no older one of this run is there" : "")
                : "no older checkpoint of this run is there";
    log_.warning("verify.rollback reaches back to step {}{}: {}", found.value_or(step),
                 found ? "" : ", from which the run goes on, and no further", because);
  }

  void tell_renamed(const std::vector<fs::path>& aside) {
    for (const fs::path& path : aside)
      log_.warning("a checkpoint of these steps is not to be used: it is now {}", path.string());
  }

  void say(const std::string& text) {
    log_.info("{}", text);
    if (!line_.quiet) progress_.say(text);
  }

  int train(server::Trainer& trainer) {
    const Input& in = p_.input;
    const std::int64_t tokens = p_.input.step.batch * p_.options.model.seq_len;
    const auto keep_going = [] { return !stop_requested(); };
    first_step_ = p_.state.step;
    begun_ = clock_.now();
    heed_stop_requests();
    try {
      while (p_.state.step < in.train.steps) {
        timeline_.begin_part(p_.state.step + 1, false);
        const server::StepResult result =
            trainer.step(p_.state.step, p_.data.batches->batch(p_.state.step), keep_going);
        ++p_.state.step;
        timeline_.end_part(&result.report);
        std::optional<double> val_loss;
        const bool last = p_.state.step == in.train.steps;
        if (!p_.data.validation.empty() && (last || p_.state.step % in.train.eval_every == 0)) {
          // A stop is heeded after this step's line and checkpoint are whole.
          timeline_.begin_part(p_.state.step, true);
          val_loss = trainer.evaluate(p_.data.validation);
          timeline_.end_part(nullptr);
          told_.note_validation(*val_loss);
          say(fmt::format("step {}: validation loss {:.4f}", p_.state.step, *val_loss));
        }
        record(tokens, result, val_loss);
        note(result);
        note_findings(trainer.verification());
        if (took_back(trainer)) {
          if (stop_requested()) return stop();
          continue;
        }
        if (last || (in.checkpoint_every > 0 && p_.state.step % in.checkpoint_every == 0)) save(last);
        if (stop_requested() && !last) return stop();
        look_for_memory();
      }
    } catch (const sched::Interrupted&) {
      note_findings(trainer.verification());
      (void)took_back(trainer);
      return stop();
    }
    return 0;
  }

  void note(const server::StepResult& r) {
    if (p_.state.step == first_step_ + 1) first_loss_ = r.outcome.loss;
    last_loss_ = r.outcome.loss;
    emulated_ += r.time;
    if (r.dilation) dilated_ += r.time * *r.dilation;
    for (const auto& [host, factor] : r.dilation_by_host) waited_for_[host] += r.time * (factor - 1);
    told_.note(p_.state.step, r, clock_.now() - begun_, status_);
    const std::string text = told_.line();
    progress_.update(p_.state.step, text, told_.panel());
    log_.info("{}", text);
    for (const server::Unchecked& u : r.recomputed) {
      log_.warning(
          "step {}: computed again from its start: {} blocks of device {} had not been checked when it was found out",
          p_.state.step, u.blocks, u.device.value);
    }
    if (r.report.lost + r.report.rejected > 0) {
      log_.warning("step {}: {} blocks lost, {} rejected, {} computed again", p_.state.step, r.report.lost,
                   r.report.rejected, r.report.redone);
    }
  }

  // The devices that were found out in a step, or in an evaluation after it.
  void note_findings(const server::VerificationReport& report) {
    for (; findings_noted_ < report.wrong.size(); ++findings_noted_) {
      const server::Finding& f = report.wrong[findings_noted_];
      log_.warning("step {}: device {} is left out: its {} of {} {}", p_.state.step, f.device.value,
                   f.digest ? "digest of another device's block" : "block", f.operation,
                   !f.checked      ? "is not finite, or not the one that was asked for"
                   : f.ratio > 0.0 ? fmt::format("is wrong; its error is {:.3g} times the bound of rounding", f.ratio)
                                   : "is not what the server computes");
    }
  }

  // verdict.json stays from the moment a device is found out until no other file contradicts it.
  bool took_back(server::Trainer& trainer) {
    const server::TakenBack taken = trainer.take_back();
    if (taken.stays) {
      log_.warning("what device {} did up to step {} stays: it is out of the reach of verify.rollback {}",
                   fmt::join(values_of(taken.devices), ", "), taken.reach, p_.input.verify.rollback);
    }
    if (!taken.step) {
      if (!taken.devices.empty()) remove_verdict(folder_.path());
      return false;
    }
    const std::int64_t from = *taken.step;
    folder_.require_own();
    log_.warning(
        "steps {} to {} are taken back and run again: device {} had a part in them that was not checked; their lines "
        "are now in taken_back.jsonl",
        from + 1, p_.state.step, fmt::join(values_of(taken.devices), ", "));
    tell_renamed(pruner_.set_aside_after(from));
    saved_.reset();
    folder_.take_back(from, taken.devices);
    told_.take_back(from);
    first_step_ = std::min(first_step_, from);
    p_.state.step = from;
    return true;
  }

  // A checkpoint that fails leaves those before it whole. The last one must not fail: the end of the run would be lost.
  void save(bool last) {
    const fs::path file = checkpoint::checkpoint_path(folder_.path(), p_.state.step);
    try {
      folder_.require_own();
      if (!folder_.is_there() && !std::exchange(folder_is_gone_, true))
        log_.warning("{} was moved or removed while the run goes on: its log and metrics are no longer there",
                     folder_.path().string());
      folder_.sync_metrics();  // a checkpoint never comes before the lines of its steps
      p_.state.parts = trainer_->part_record(p_.state.step);
      server::save_checkpoint(file, p_.parameters, p_.options.model, p_.state);
    } catch (const EnvironmentError& error) {
      if (last || p_.input.checkpoint_failure_stops) throw;
      log_.warning("no checkpoint after step {}: {}; going on to the next one", p_.state.step, error.what());
      return;
    }
    saved_ = file;
    log_.info("saved {}", file.string());
    pruner_.wrote(file, p_.state.step);
    prune();
  }

  // What cannot be deleted costs room, not the run.
  void prune() {
    try {
      std::optional<std::int64_t> back_to;
      if (p_.input.verify.rollback > 0) back_to = p_.state.step - p_.input.verify.rollback;
      for (const fs::path& gone : pruner_.prune(p_.input.checkpoint_keep, back_to))
        log_.info("deleted {} (checkpoint.keep {})", gone.string(), p_.input.checkpoint_keep);
    } catch (const EnvironmentError& error) { log_.warning("an old checkpoint stays: {}", error.what()); }
  }

  // Lines that cannot be written now are kept and written with a later one.
  void record(std::int64_t tokens, const server::StepResult& result, std::optional<double> val_loss) {
    try {
      folder_.append(p_.state.step, tokens, result, val_loss);
      metrics_fail_ = false;
    } catch (const EnvironmentError& error) {
      if (p_.input.checkpoint_failure_stops) throw;
      if (!metrics_fail_) log_.warning("metrics of step {} are held back: {}", p_.state.step, error.what());
      metrics_fail_ = true;
    }
  }

  // Where memory ran out in this step and none is left now, the next one would only lose it.
  void look_for_memory() {
    const MemoryState memory = look_after_memory();
    if (memory == MemoryState::enough) return;
    log_.warning("step {}: memory ran out; what was held back was enough to finish it", p_.state.step);
    if (memory == MemoryState::ran_out) return;
    save(true);
    throw EnvironmentError("go on", fmt::format("after step {}", p_.state.step),
                           "out of memory; its checkpoint is saved");
  }

  int stop() {
    save(true);
    progress_.finish();
    log_.warning("stopped on request after step {}; go on with --resume auto", p_.state.step);
    return static_cast<int>(ExitCode::stopped);
  }

  // Of devices, what the model of their memory says: ranks that host several share one process.
  void report_memory(const server::Trainer& trainer) {
    Bytes device{0};
    for (const sched::Usage& used : trainer.usage()) device = std::max(device, used.memory_peak);
    log_.info("peak memory of activations and gradients: {} (predicted {})", show(trainer.peak_activation_memory()),
              show(p_.memory.activations));
    say(fmt::format("peak memory: server {} (predicted {}), device {} (predicted {})",
                    show(server::measure_process_memory().peak), show(p_.memory.server()), show(device),
                    show(p_.memory.device_peak)));
  }

  void report_verification(const server::Trainer& trainer) {
    const server::Verification& terms = p_.options.executor.verification;
    const server::VerificationReport& v = trainer.verification();
    if (terms.mode == server::VerifyMode::off) return;
    std::string text = fmt::format("verification ({}): {} of {} blocks checked in {}, {} wrong",
                                   server::name_of(terms.mode), v.checked, v.blocks, show(v.time), v.wrong.size());
    if (v.cleared > 0) text += fmt::format(", {} suspected but right", v.cleared);
    if (terms.mode != server::VerifyMode::all) {
      text += fmt::format("; a wrong block stood before its device was found out with probability {:.3g}",
                          server::slip_probability(terms, v));
    }
    say(text);
  }

  // How well real time followed the model (clock `wall`).
  void report_dilation(Seconds late) {
    if (dilated_.value() <= 0) return;
    const double dilation = dilated_ / emulated_;
    std::string text = fmt::format("{} of the model took {}, dilated by a factor of {:.3f}; at most {} late",
                                   show(emulated_), show(dilated_), dilation, show(late));
    for (const auto& [host, waited] : waited_for_) {
      text += fmt::format("{} {} {:.3f}", waited_for_.begin()->first == host ? "; by host:" : ",", host,
                          1 + waited / emulated_);
    }
    if (dilation > kKeepsUp) {
      log_.warning("this host was too slow for clock wall: {}", text);
    } else {
      say("clock wall: " + text);
    }
  }

  void report_profile(const server::Profile& profile) {
    if (profile.steps() == 0) return;
    const auto steps = static_cast<double>(profile.steps());
    const server::PhaseTimes& all = profile.all();
    const Seconds total = server::sum_of(all);
    std::vector<std::pair<Seconds, std::string>> types;
    for (const auto& [type, times] : profile.by_type()) {
      if (!type.empty()) types.emplace_back(server::sum_of(times), type);
    }
    std::string text = "the server's real time, a step:";
    for (std::size_t i = 0; i < all.size(); ++i) {
      text += fmt::format("{} {} {} ({:.0f} %)", i > 0 ? "," : "", server::name_of(static_cast<server::Phase>(i)),
                          show(all[i] / steps), 100 * (all[i] / total));
    }
    say(text);
    std::sort(types.rbegin(), types.rend());
    for (const auto& [time, type] : types) log_.info("  {}: {} a step", type, show(time / steps));
  }

  void conclude(server::Trainer& trainer, int code) {
    report_dilation(trainer.lateness());
    for (const DeviceId id : trainer.distrusted())
      log_.warning("device {} answered wrongly and got no more work", id.value);
    report_verification(trainer);
    report_memory(trainer);
    report_profile(trainer.profile());
    if (code != 0) return;
    say(fmt::format("loss {:.4f} -> {:.4f} in {} steps; emulated {}, real {}; parameters {:016x}", first_loss_,
                    last_loss_, p_.state.step - first_step_, show(emulated_), show(clock_.now() - begun_),
                    p_.parameters.hash()));
    if (saved_) say(fmt::format("checkpoint {}", saved_->string()));
    if (reported_) say(fmt::format("report {}", reported_->string()));
  }

  // The run is done and safe: a full disk costs the report, not the exit code.
  void show_what_happened(const server::Trainer& trainer) {
    try {
      folder_.require_own();
      folder_.store_verification(p_.options.executor.verification, trainer.verification(), trainer.distrusted());
      if (p_.input.profile) folder_.store_profile(trainer.profile());
      timeline_.finish(trainer.usage(), p_.memory.server(), trainer.peak_activation_memory());
      timeline_.store(folder_.path() / "timeline.json");
      timeline_.store_trace(folder_.path() / "trace.json");
      renew_report();
    } catch (const EnvironmentError& error) { log_.warning("no report: {}", error.what()); }
  }

  // One that is there may be of an earlier stop, where the process that did the last steps was killed as it wrote it.
  void renew_report() {
    try {
      write_report({folder_.path()}, folder_.path() / "report.html");
      reported_ = folder_.path() / "report.html";
    } catch (const EnvironmentError& error) {
      log_.warning("no report: {}", error.what());
    } catch (const InputError& error) {  // a file in the folder that somebody else wrote under a name of ours
      log_.warning("no report: {}", error.what());
    }
  }

  const CommandLine& line_;
  Prepared& p_;
  Session& session_;
  SteadyClock clock_;
  RunFolder folder_;
  checkpoint::Pruner pruner_;
  telemetry::Progress progress_;
  telemetry::Log log_;
  Timeline timeline_;
  FleetStatus status_;
  EarlierCheckpoints earlier_;
  TrainProgress told_;
  server::Trainer* trainer_ = nullptr;
  std::int64_t first_step_ = 0;
  std::size_t findings_noted_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  bool metrics_fail_ = false, folder_is_gone_ = false;
  Seconds begun_, emulated_{0}, dilated_{0};
  std::map<std::string, Seconds> waited_for_;  // of the dilation, by host
  std::optional<fs::path> saved_, reported_;
};

}  // namespace

int train(const CommandLine& line, int argc, char** argv) {
  take_default_signals();
  Input input = read_input(only_input(line), line.overrides, Needs::everything);
  Session session(argc, argv);
  comm::MpiTransportOptions transport;

  std::string left_by_others;
  if (session.size() > 1 && is_first_on_its_host()) left_by_others = describe(remove_leftovers(LeftoverPlaces::here()));
  std::optional<Prepared> prepared;
  int code = 0;
  if (session.is_server()) {
    code = with_exit_code([&] {
      transport = transport_options(input);
      server::DeviceRanks ranks{session.devices_on_this_host()};
      if (!transport.shared_memory) ranks = server::DeviceRanks::sent_all(ranks.count());
      prepared.emplace(prepare(line, std::move(input), ranks));
      if (!left_by_others.empty()) prepared->notices.push_back(left_by_others);
      return 0;
    });
    if (code == 0 && line.dry_run) print_dry_run(*prepared);
  }
  code = session.share_start_code(code, transport);
  if (code != 0 || line.dry_run) return code;
  if (!session.is_server()) {
    code = session.serve();
    session.finish({}, code);
    return code;
  }

  std::optional<std::vector<server::RankInfo>> missing;
  code = with_exit_code([&] { return Run(line, *prepared, session)(missing); });
  if (!missing) session.dismiss();
  session.finish(missing.value_or(std::vector<server::RankInfo>()), code);
  return code;
}

}  // namespace cleave::app
