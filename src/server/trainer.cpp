// Graphs, scheduler runs, and what is read off after them.
#include "cleave/server/trainer.hpp"
#include "cleave/base/host_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "executor.hpp"
#include "pace.hpp"
#include "rank_fleet.hpp"
#include "step_history.hpp"

namespace cleave::server {

namespace {

UpdateTerms update_terms(const TrainSettings& s, std::int64_t step) {
  return {.lr = learning_rate(s, step),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.adam_eps,
          .weight_decay = s.weight_decay,
          .grad_clip = s.grad_clip,
          .k = step + 1};
}

// By where their connections come from: what ranks say of their hosts would let them choose their witnesses. Where all
// devices are emulated on one host it tells nothing of who owns them.
std::vector<std::string> hosts_of(const std::vector<RankInfo>& ranks, std::size_t devices) {
  std::vector<std::string> hosts(devices);
  std::set<std::string> all;
  for (const RankInfo& rank : ranks) {
    for (const DeviceId device : rank.devices) {
      hosts[static_cast<std::size_t>(device.value)] = rank.address;
      all.insert(rank.address);
    }
  }
  if (all.size() < 2) hosts.clear();
  return hosts;
}

// Parts of the dilation by host; nothing where all ranks are on one.
std::map<std::string, double> by_host(const std::map<int, double>& shares, const std::vector<RankInfo>& ranks) {
  std::map<std::string, double> hosts;
  for (const RankInfo& rank : ranks) {
    if (!rank.host.empty()) hosts.emplace(rank.host, 1.0);
  }
  const std::string here = host_name();
  hosts.emplace(here, 1.0);
  if (hosts.size() == 1) return {};
  for (const auto& [rank, share] : shares) {
    const std::string host = rank > 0 ? ranks[static_cast<std::size_t>(rank)].host : here;
    if (const auto found = hosts.find(host); found != hosts.end()) found->second += share;
  }
  return hosts;
}

}  // namespace

sched::SchedulerOptions scheduling(const TrainerOptions& options) {
  sched::SchedulerOptions how = sched::scheduler_options(options);
  how.learn = how.copies = options.fleet.clock != ClockMode::off;
  return how;
}

struct Trainer::Impl {
  ParameterStore& parameters;
  TrainerOptions options;
  // By kind, batch and rows of a chunk of the loss. The executor refers to them.
  std::map<std::tuple<model::StepKind, std::int64_t, std::int64_t>, model::StepGraph> graphs;
  Executor executor;
  std::unique_ptr<RankFleet> ranks;
  std::unique_ptr<sched::Fleet> local;
  std::optional<sched::QuorumFleet> quorum;
  SipKey secret{};  // of the draws of pairs
  std::optional<StepHistory> history;
  EarlierStates* earlier = nullptr;
  std::size_t findings_heeded = 0, findings_told = 0;  // of those that verification reports
  sched::Fleet* fleet = nullptr;
  std::optional<sched::Scheduler> scheduler;
  std::optional<sched::StageScheduler> stages;  // of training steps, where they come in stages
  std::optional<Seconds> undisturbed;           // simulated time of a training step
  std::optional<plan::StagePlan> timed_plan;    // in stages: its plan
  std::uint64_t bound_roster = 0;
  Seconds bound, floor;

  Impl(ParameterStore& store, TrainerOptions o)
      : parameters(store), options(std::move(o)), executor(parameters, options.wire, options.executor) {}

  const model::StepGraph& graph(model::StepKind kind, std::int64_t batch, std::int64_t loss_rows = 0) {
    const auto found = graphs.find({kind, batch, loss_rows});
    if (found != graphs.end()) return found->second;
    model::StepOptions step = sched::graph_options(options, std::max<std::int64_t>(1, options.layout.row_groups));
    step.kind = kind;
    step.batch = batch;
    step.loss_rows = loss_rows;
    if (kind == model::StepKind::train && in_stages())
      step = model::options_of_stages({options.model, batch, options.freeze, options.wire, options.boundary},
                                      options.clip);
    return graphs.emplace(std::tuple(kind, batch, loss_rows), model::build_step(options.model, step)).first->second;
  }

  [[nodiscard]] bool in_stages() const { return options.layout.layout == sched::Layout::stages && ranks != nullptr; }

  // Who was found out in one layout gets no work in the other either.
  void spread_distrust() {
    for (const Finding& finding : executor.verification().wrong) {
      scheduler->distrust(finding.device);
      if (stages) stages->distrust(finding.device);
      if (quorum) quorum->distrust(finding.device);
    }
  }

  sched::StageSchedulerOptions stage_options() const {
    sched::StageSchedulerOptions how = sched::stage_scheduler_options(options);
    if (how.quorum) how.quorum = pair_terms();
    const bool emulated = options.fleet.clock != ClockMode::off;
    how.learn = how.watch = how.rehearse = how.stages.leave_out = how.forecasts_hold = emulated;
    if (!emulated && how.server_sums == sched::ServerSums::if_sooner)
      how.server_sums = sched::ServerSums::if_nobody_else;
    how.tiles = scheduling(options);
    how.may_give_up = true;  // the step is run in tiles then, or by the server
    return how;
  }

  [[nodiscard]] sched::QuorumOptions pair_terms() const {
    sched::QuorumOptions terms = sched::quorum_options(options);
    terms.timed = options.fleet.clock != ClockMode::off;
    terms.secret = secret;
    terms.hosts = hosts_of(ranks->ranks(), options.devices.size());
    return terms;
  }

  // A training step in stages, from its start again each time that a device is found out that had a part in it. Numbers
  // of tasklets go on from those of steps in tiles.
  sched::StepReport run_stages(const model::StepGraph& step, const StepInputs& inputs,
                               const sched::KeepGoing& keep_going, std::vector<Unchecked>& recomputed) {
    sched::StepReport abandoned;
    for (;;) {
      spread_distrust();
      executor.begin_step(step, inputs);
      if (!stages) {
        // Says at once where the devices that were declared cannot hold the model.
        const sched::StageSchedulerOptions how = stage_options();
        const bool all_there = fleet->devices().size() == options.devices.size();
        stages.emplace(*fleet, step,
                       all_there && options.stage_plan
                           ? *options.stage_plan
                           : plan::plan_stages(plan::stage_work_of(step, options.wire), options.devices, how.stages),
                       how);
        if (!all_there) stages->plan_anew();
        spread_distrust();
      }
      const auto go_on = [&] {
        tell_of_findings();
        return executor.spoiled().empty() && (!keep_going || executor.updating() || keep_going());
      };
      stages->number_from(scheduler->next_tasklet());
      try {
        sched::StepReport report = stages->run(go_on);
        tell_of_findings();
        scheduler->number_from(stages->next_tasklet());
        if (executor.spoiled().empty()) {
          add_abandoned(report, abandoned);
          return report;
        }
        add_abandoned(abandoned, report);
      } catch (const sched::Interrupted&) {
        const sched::StepReport part = stages->abandon();
        scheduler->number_from(stages->next_tasklet());
        if (executor.spoiled().empty() && !executor.suspect()) throw;
        add_abandoned(abandoned, part);
        if (executor.suspect()) {
          recomputed.insert(recomputed.end(), executor.spoiled().begin(), executor.spoiled().end());
          executor.undo_updates();
          spread_distrust();
          sched::StepReport report = run(step, inputs, keep_going, recomputed, /*every_block=*/true);
          add_abandoned(report, abandoned);
          return report;
        }
      } catch (const InputError&) {  // devices that are left cannot hold the model; tiles give the same bits
        add_abandoned(abandoned, stages->abandon());
        scheduler->number_from(stages->next_tasklet());
        executor.undo_updates();
        spread_distrust();
        sched::StepReport report = run(step, inputs, keep_going, recomputed);
        add_abandoned(report, abandoned);
        return report;
      }
      recomputed.insert(recomputed.end(), executor.spoiled().begin(), executor.spoiled().end());
      executor.undo_updates();
    }
  }

  void renew_bounds(const model::StepGraph& step) {
    const std::uint64_t roster = fleet->roster();
    if (roster == bound_roster) return;
    bound_roster = roster;
    const std::vector<plan::DeviceState> devices = fleet->devices();
    if (!in_stages()) bound = sched::step_lower_bound(step, devices, scheduling(options));
    floor = sched::step_floor(options, devices);
  }

  // Of the layout that the step had.
  Seconds bound_of_stages(const model::StepGraph& step) const {
    return plan::stage_lower_bound(plan::stage_work_of(step, options.wire), stages->plan(), options.devices,
                                   options.server(), plan::server_share(step, options.server()));
  }

  // Runs a graph, from its start again each time that a device is found out whose earlier blocks of it were not
  // checked. There is one device fewer each time.
  sched::StepReport run(const model::StepGraph& step, const StepInputs& inputs, const sched::KeepGoing& keep_going,
                        std::vector<Unchecked>& recomputed, bool every_block = false) {
    sched::StepReport abandoned;
    const sched::QuorumTotals before = quorum ? quorum->totals() : sched::QuorumTotals{};
    const auto stands = [&] { return executor.spoiled().empty() && !executor.suspect(); };
    for (;; every_block = every_block || executor.suspect()) {
      executor.begin_step(step, inputs, every_block);
      try {
        sched::StepReport report = scheduler->run(step, [&] {
          tell_of_findings();
          return stands() && (!keep_going || executor.updating() || keep_going());
        });
        tell_of_findings();
        if (stands()) {
          add_abandoned(report, abandoned);
          if (quorum) sched::add(report, difference(quorum->totals(), before));
          return report;
        }
        add_abandoned(abandoned, report);  // its last block told
      } catch (const sched::Interrupted&) {
        if (stands()) throw;
        add_abandoned(abandoned, scheduler->abandon());
      } catch (const CheckFailure&) {
        if (!executor.becomes_suspect()) throw;
        add_abandoned(abandoned, scheduler->abandon());
      }
      recomputed.insert(recomputed.end(), executor.spoiled().begin(), executor.spoiled().end());
      executor.undo_updates();
    }
  }

  // Who was found out since take_back() was last asked.
  [[nodiscard]] std::set<DeviceId> found_out() const {
    const std::vector<Finding>& wrong = executor.verification().wrong;
    std::set<DeviceId> devices;
    for (std::size_t i = findings_heeded; i < wrong.size(); ++i) devices.insert(wrong[i].device);
    return devices;
  }

  // Where training is to go on from, once these devices are found out.
  struct WayBack {
    std::optional<std::int64_t> step;  // empty: no need to go back, or no way
    bool load = false;                 // its state is not in memory
    bool stays = false;                // there is none that is early enough
    std::int64_t condemned = 0;        // the first step that leaves nothing
  };
  [[nodiscard]] WayBack way_back(const std::set<DeviceId>& liars) const {
    const auto wanted = history->first_part_of(liars);
    if (!wanted || *wanted >= history->reach()) return {.step = wanted, .condemned = wanted.value_or(0)};
    if (earlier != nullptr) {
      if (const auto found = earlier->find(*wanted, history->reach()))
        return {.step = found, .load = true, .stays = *found > *wanted, .condemned = std::max(*found, *wanted)};
    }
    const auto copied = history->first_copied_part_of(liars);
    return {.step = copied, .stays = true, .condemned = copied.value_or(0)};
  }

  void tell_of_findings() {
    const std::size_t found = executor.verification().wrong.size();
    if (found == std::exchange(findings_told, found) || !history || earlier == nullptr) return;
    const std::set<DeviceId> liars = found_out();
    if (const WayBack way = way_back(liars); way.step) earlier->condemn(way.condemned, {liars.begin(), liars.end()});
  }

  // With clock `off` nothing is emulated: the simulator says what an undisturbed step would take.
  Seconds simulated_time(const model::StepGraph& step) {
    if (!undisturbed || (in_stages() && *timed_plan != stages->plan())) {
      sched::SimulatedFleet model(options.devices, options.server(), options.wire);
      std::optional<sched::QuorumFleet> paired;
      if (quorum) paired.emplace(model, sched::quorum_options(options));
      sched::Fleet& simulated = paired ? static_cast<sched::Fleet&>(*paired) : model;
      if (in_stages()) {
        timed_plan = stages->plan();
        sched::StageScheduler of_model(model, step, *timed_plan, sched::stage_scheduler_options(options));
        undisturbed = of_model.run().time;
      } else {
        undisturbed = sched::Scheduler(simulated, scheduling(options)).run(step).time;
      }
    }
    return *undisturbed;
  }
};

Trainer::Trainer(ParameterStore& parameters, TrainerOptions options, comm::Transport* transport)
    : impl_(std::make_unique<Impl>(parameters, std::move(options))) {
  Impl& self = *impl_;
  if (transport != nullptr) {
    self.parameters.move_to_shared_memory();
    self.ranks = make_rank_fleet(*transport, self.executor, self.options, self.options.fleet);
    self.fleet = self.ranks.get();
  } else {
    self.local = make_local_fleet(self.executor, self.options.server());
    self.fleet = self.local.get();
  }
  const Verification& verify = self.options.executor.verification;
  CLEAVE_ASSERT(self.options.paired == (verify.mode == VerifyMode::quorum ? verify.fraction : 0.0),
                "{} of tasklets are paired", self.options.paired);
  if (self.ranks && self.options.paired > 0) {
    self.secret = self.options.executor.verification.pair_secret.value_or(secret_key());
    self.quorum.emplace(*self.ranks, self.pair_terms());
    self.fleet = &*self.quorum;
  }
  if (self.ranks && verify.rollback > 0) self.history.emplace(self.parameters, verify.rollback);
  self.scheduler.emplace(*self.fleet, scheduling(self.options));
}
Trainer::~Trainer() = default;

StepResult Trainer::step(std::int64_t step, const data::Batch& batch, const sched::KeepGoing& keep_going,
                         const GradientObserver& on_gradient) {
  Impl& self = *impl_;
  const auto begun = std::chrono::steady_clock::now();
  const VerificationReport before = self.executor.verification();
  const model::StepGraph& graph = self.graph(model::StepKind::train, batch.rows);
  self.executor.profile().begin_step(graph);
  self.parameters.ensure_moments(graph);
  if (self.history) self.history->begin(step);
  StepResult result;
  self.renew_bounds(graph);
  result.floor = self.floor;
  const StepInputs inputs{.tokens = batch.tokens,
                          .targets = batch.targets,
                          .update = update_terms(self.options.train, step),
                          .on_gradient = on_gradient};
  result.report = self.in_stages() ? self.run_stages(graph, inputs, keep_going, result.recomputed)
                                   : self.run(graph, inputs, keep_going, result.recomputed);
  result.lower_bound = std::max(self.in_stages() ? self.bound_of_stages(graph) : self.bound, self.floor);
  if (self.history) self.history->done(self.executor.unverified());
  result.verification = difference(self.executor.verification(), before);
  if (self.in_stages() && self.options.wire != DType::f32)
    result.promoted_rows = self.executor.stages().promoted_rows();
  result.outcome.loss = self.executor.loss();
  result.outcome.grad_norm = self.executor.grad_norm();
  result.outcome.clip = clip_factor(self.options.train.grad_clip, result.outcome.grad_norm);
  result.outcome.lr = learning_rate(self.options.train, step);
  result.time =
      self.ranks && self.options.fleet.clock == ClockMode::off ? self.simulated_time(graph) : result.report.time;
  if (self.ranks && self.ranks->pace() != nullptr) {
    result.dilation = self.ranks->pace()->dilation();
    result.dilation_by_host = by_host(self.ranks->pace()->shares(), self.ranks->ranks());
  }
  self.executor.profile().end_step();
  if (self.executor.profile().enabled()) result.phases = self.executor.profile().last_step();
  result.wall = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  const bool to_be_taken_back = self.history && self.way_back(self.found_out()).step;
  if (!to_be_taken_back && (!std::isfinite(result.outcome.loss) || !std::isfinite(result.outcome.grad_norm))) {
    throw CheckFailure(fmt::format("step {}: the loss is {}, the gradient norm {}: the training has diverged", step,
                                   result.outcome.loss, result.outcome.grad_norm));
  }
  return result;
}

TakenBack Trainer::take_back() {
  Impl& self = *impl_;
  TakenBack taken;
  if (!self.history) return taken;
  const std::set<DeviceId> liars = self.found_out();
  self.findings_heeded = self.executor.verification().wrong.size();
  if (liars.empty()) return taken;
  taken.devices = {liars.begin(), liars.end()};
  const Impl::WayBack way = self.way_back(liars);
  taken.stays = way.stays || self.history->too_late_for(liars);
  taken.reach = self.history->reach();
  if (!way.step) return taken;
  if (way.load) {
    self.earlier->load(*way.step);
    self.history->go_on_from(*way.step);
    taken.step = taken.reach = *way.step;
  } else {
    taken.step = self.history->go_back_to(*way.step);
  }
  return taken;
}

void Trainer::use(EarlierStates& earlier) { impl_->earlier = &earlier; }

std::string Trainer::part_record(std::int64_t step) const {
  if (!impl_->history) return {};
  return to_text(impl_->history->record(step), impl_->options.devices);
}

std::optional<std::int64_t> Trainer::remember_parts(std::int64_t step, const std::string& record) {
  Impl& self = *impl_;
  if (!self.history) return std::nullopt;
  const std::int64_t first = std::max<std::int64_t>(0, step - self.options.executor.verification.rollback);
  std::optional<PartRecord> parts = read_part_record(record, self.options.devices, first, step);
  if (!parts) return std::nullopt;
  const std::int64_t tells_from = parts->steps.empty() ? step : parts->steps.begin()->first;
  self.history->remember(std::move(*parts));
  return tells_from;
}

double Trainer::evaluate(std::span<const data::Batch> batches, const sched::KeepGoing& keep_going) {
  CLEAVE_ASSERT(!batches.empty(), "no batches to evaluate");
  Impl& self = *impl_;
  double sum = 0, targets = 0;
  for (const data::Batch& batch : batches) {
    const model::StepGraph& graph = self.graph(model::StepKind::evaluate, batch.rows);
    std::vector<Unchecked> recomputed;
    self.run(graph, {.tokens = batch.tokens, .targets = batch.targets, .update = {}, .on_gradient = {}}, keep_going,
             recomputed);
    const double count = static_cast<double>(batch.rows * batch.seq);
    sum += self.executor.loss() * count;
    targets += count;
  }
  if (!std::isfinite(sum)) throw CheckFailure("the validation loss is not finite");
  return sum / targets;
}

std::vector<float> Trainer::logits(std::span<const std::int32_t> tokens) {
  Impl& self = *impl_;
  const std::int64_t seq = self.options.model.seq_len;
  CLEAVE_ASSERT(static_cast<std::int64_t>(tokens.size()) == seq, "{} tokens", tokens.size());
  const model::StepGraph& graph = self.graph(model::StepKind::evaluate, 1, seq);
  const std::vector<std::int32_t> targets(tokens.size(), 0);
  std::vector<Unchecked> recomputed;
  self.run(graph, {.tokens = tokens, .targets = targets, .update = {}, .on_gradient = {}}, {}, recomputed);
  const kernels::ConstRows rows = self.executor.logits();
  std::vector<float> copy;
  for (std::int64_t t = 0; t < seq; ++t) copy.insert(copy.end(), rows.row(t), rows.row(t) + rows.cols);
  return copy;
}

std::vector<RankInfo> Trainer::ranks() const { return impl_->ranks ? impl_->ranks->ranks() : std::vector<RankInfo>{}; }
std::span<const sched::Usage> Trainer::usage() const { return impl_->fleet->usage(); }
std::vector<DeviceId> Trainer::distrusted() const {
  const std::vector<DeviceId> in_tiles = impl_->scheduler->distrusted();
  std::set<DeviceId> devices(in_tiles.begin(), in_tiles.end());
  if (impl_->stages) {
    for (const DeviceId device : impl_->stages->distrusted()) devices.insert(device);
  }
  return {devices.begin(), devices.end()};
}
const VerificationReport& Trainer::verification() const { return impl_->executor.verification(); }
Seconds Trainer::lateness() const {
  return impl_->ranks && impl_->ranks->pace() != nullptr ? impl_->ranks->pace()->lateness() : Seconds(0);
}
const Profile& Trainer::profile() const { return impl_->executor.profile(); }
Bytes Trainer::peak_activation_memory() const { return impl_->executor.peak_memory(); }
std::vector<RankInfo> Trainer::say_goodbye(Seconds at_most) {
  return impl_->ranks ? impl_->ranks->say_goodbye(at_most) : std::vector<RankInfo>{};
}

}  // namespace cleave::server
