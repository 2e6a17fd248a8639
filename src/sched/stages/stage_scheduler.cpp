// A step in stages, event by event.
#include "cleave/sched/stage_scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "by_tasklet.hpp"
#include "cleave/base/error.hpp"
#include "cleave/plan/panels.hpp"
#include "stages/run_state.hpp"
#include "stages/server_work.hpp"

namespace cleave::sched {

using namespace stages;

namespace {

constexpr std::int64_t kEventsBetweenQuestions = 1024;
constexpr std::int64_t kWeightPanel = 4'000'000;  // bytes: what is more urgent waits for no more than one of them
constexpr std::int64_t kOperandPanels = 8;        // of a sequence that an owner is sent
constexpr int kLookAhead = 2;                     // stages that X travels ahead of dY

std::vector<fleet::DeviceProfile> profiles_of(const Fleet& fleet) {
  std::vector<fleet::DeviceProfile> profiles;
  for (const plan::DeviceState& state : fleet.devices()) profiles.push_back(state.profile);
  return profiles;
}

Bytes with_header(Bytes payload) { return payload + plan::kMessageHeader; }

}  // namespace

struct StageScheduler::Impl {
  Fleet& fleet;
  const model::StepGraph& graph;
  StageSchedulerOptions options;
  plan::StageWork work;
  plan::StagePlan plan;
  ServerWork server;

  std::int64_t batch, chunks;
  std::vector<StageState> stage;
  std::vector<OwnerState> owner;
  std::vector<Visit> forward, backward;  // [stage * batch + sequence]
  std::vector<DeviceBook> device;        // by id
  ByTasklet<Purpose> purposes;
  std::int64_t next_id = 0;
  std::vector<std::pair<TaskletId, std::int32_t>> loads;  // weights, and memory that is kept for the step
  std::int32_t lowest = 0;                                // stage that goes backward
  OpId op;                                                // that tasklets bear
  StepReport report;

  Impl(Fleet& of, const model::StepGraph& step, plan::StagePlan layout, StageSchedulerOptions settings)
      : fleet(of),
        graph(step),
        options(std::move(settings)),
        work(plan::stage_work_of(step, options.wire)),
        plan(std::move(layout)),
        server(of, step),
        batch(work.batch),
        chunks((work.seq + plan.chunk - 1) / plan.chunk) {
    for (const model::Operation& operation : graph.operations) {
      if (operation.kind == model::OpKind::gemm && !op.valid()) op = operation.id;
    }
    lowest = static_cast<std::int32_t>(plan.stages.size());
    for (std::size_t s = plan.stages.size(); s-- > 0;) {
      if (plan::StageCost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk).backward())
        lowest = static_cast<std::int32_t>(s);
    }
    for (const plan::Stage& of_plan : plan.stages) expect_sources(of_plan);
  }

  std::int32_t top() const { return static_cast<std::int32_t>(stage.size()) - 1; }
  StageState& at(std::int32_t s) { return stage[static_cast<std::size_t>(s)]; }
  DeviceBook& book(std::int32_t id) { return device[static_cast<std::size_t>(id)]; }
  Visit& visit(std::vector<Visit>& visits, std::int32_t s, std::int64_t q) {
    return visits[static_cast<std::size_t>(s * batch + q)];
  }
  std::int64_t rows_from(std::int64_t chunk) const { return chunk * plan.chunk; }
  std::int64_t rows_to(std::int64_t chunk) const { return std::min(work.seq, (chunk + 1) * plan.chunk); }

  // A stage's gradient has two sources: its owners, and norms, whose gradients come with the sequences.
  template <class Visitor>
  void for_sources(const plan::Stage& of_plan, Visitor of_owners, Visitor of_norms) const {
    std::set<std::int64_t> seen;
    for (std::int64_t i = of_plan.first; i < of_plan.end; ++i) {
      const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
      for (const model::SlicedTensor& tensor : piece.tensors) {
        if (tensor.trained && seen.insert(tensor.tensor.value).second) of_owners(tensor.tensor);
      }
      for (const TensorId norm : piece.norms) of_norms(norm);
    }
  }
  void expect_sources(const plan::Stage& of_plan) {
    const std::function<void(TensorId)> expect = [&](TensorId tensor) { server.expect_source(tensor); };
    for_sources(of_plan, expect, expect);
  }

  void begin() {
    report = StepReport{};
    purposes.clear();
    loads.clear();
    stage.clear();
    owner.clear();
    const auto visits = plan.stages.size() * static_cast<std::size_t>(batch);
    forward.assign(visits, Visit{});
    backward.assign(visits, Visit{});
    device.clear();
    for (const plan::DeviceState& state : fleet.devices()) {
      const auto id = static_cast<std::size_t>(state.profile.id.value);
      if (device.size() <= id) device.resize(id + 1);
      device[id].present = true;
      device[id].uplink = state.profile.uplink.value();
      device[id].downlink = state.profile.downlink.value();
    }
    fleet.begin_step(graph);
    load_replicas();
    load_owners();
    server.begin();
  }

  // ---- tasklets

  TaskletId submit(const Purpose& purpose, Priority priority, const plan::PanelRun& run, Bytes resident, bool keeps) {
    Tasklet tasklet;
    tasklet.id = TaskletId(next_id++);
    tasklet.op = op;
    tasklet.run = run;
    tasklet.urgency = priority.first;
    tasklet.turn = priority.second;
    tasklet.piece.device = DeviceId(purpose.device);
    tasklet.piece.panels = run.panels;
    tasklet.piece.bytes_down = run.down();
    tasklet.piece.bytes_up = run.up();
    tasklet.piece.resident = resident;
    if (keeps) {
      tasklet.columns = tasklet.id;
      loads.emplace_back(tasklet.id, purpose.device);
    } else {
      purposes.add(tasklet.id, purpose);
    }
    report.bytes_down += run.down();
    report.bytes_up += run.up();
    ++report.tasklets;
    fleet.submit(tasklet);
    return tasklet.id;
  }

  // Weights stay, with the memory that goes with them, until the step ends. They need no answer: a link carries them
  // before what uses them.
  void load(const Purpose& purpose, Urgency urgency, Bytes weights, Bytes memory) {
    plan::PanelRun run;
    run.panels = std::max<std::int64_t>(1, weights.value() / kWeightPanel);
    if (weights.value() > 0) run.each.down = with_header(Bytes((weights.value() + run.panels - 1) / run.panels));
    submit(purpose, {urgency, purpose.stage}, run, memory, true);
  }

  void load_replicas() {
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const plan::Stage& of_plan = plan.stages[s];
      stage.push_back({plan::StageCost(work, of_plan.first, of_plan.end, plan.chunk), {}, {}, {}, {}, batch, 0});
      for (const plan::StageReplica& replica : of_plan.replicas) {
        const auto id = static_cast<std::int32_t>(replica.device.value);
        if (static_cast<std::size_t>(id) >= device.size() || !book(id).present) continue;
        stage.back().hosts.push_back({id, replica.forward_slots, replica.backward_slots});
        load({Errand::weights, id, static_cast<std::int32_t>(s)}, kWeights, of_plan.weights, replica.memory);
        const Seconds start = std::max(book(id).ready, fleet.now());
        book(id).ready = start + of_plan.weights / BytesPerSecond(book(id).downlink);
      }
      CLEAVE_ASSERT(!stage.back().hosts.empty(), "stage {} has no replica", s);
    }
  }

  void load_owners() {
    for (const plan::GradientOwner& of_plan : plan.owners) {
      const auto id = static_cast<std::int32_t>(of_plan.device.value), s = static_cast<std::int32_t>(of_plan.stage);
      const std::int64_t groups = plan.groups[static_cast<std::size_t>(s)];
      OwnerState state;
      state.device = id;
      state.stage = s;
      state.group = of_plan.group;
      state.replica = of_plan.replica;
      state.cost = plan::owner_cost(work, at(s).cost, of_plan.slices, plan.chunk);
      const std::int64_t size = groups == 1 ? size_of(work.wire) : plan::sum_bytes(work.wire);
      state.sums = Bytes(static_cast<std::int64_t>(state.cost.elements) * size);
      for (std::int64_t q = of_plan.group; q < batch; q += groups) ++state.left;
      state.seen.assign(static_cast<std::size_t>(batch), false);
      at(s).owners.push_back(static_cast<std::int32_t>(owner.size()));
      ++at(s).gradients_left;
      load({Errand::weights, id, s}, state.replica ? kWeights : kSliceWeights, of_plan.weights, of_plan.memory);
      owner.push_back(std::move(state));
    }
  }

  // ---- sequences

  // The replica that will be done with a sequence first, of those with room for it.
  Host* choose(std::int32_t s, std::int64_t Host::*slots) {
    const double bytes = static_cast<double>(at(s).cost.boundary(work.seq).value());
    Host* best = nullptr;
    double soonest = std::numeric_limits<double>::infinity();
    for (Host& host : at(s).hosts) {
      const DeviceBook& at_host = book(host.device);
      const double done = std::max(at_host.ready, fleet.now()).value() + (at_host.in_hand + bytes) / at_host.uplink +
                          bytes / at_host.downlink;
      if (done < soonest && host.*slots > 0) {
        soonest = done;
        best = &host;
      }
    }
    return best;
  }

  bool place_visit(Visit& of, std::int32_t s, std::int64_t Host::*slots) {
    Host* const host = choose(s, slots);
    if (host == nullptr) return false;
    --(host->*slots);
    of.device = host->device;
    book(host->device).in_hand += static_cast<double>(at(s).cost.boundary(work.seq).value());
    return true;
  }

  void leave_visit(const Visit& of, std::int32_t s, std::int64_t Host::*slots) {
    const auto host = std::ranges::find(at(s).hosts, of.device, &Host::device);
    if (host != at(s).hosts.end()) ++((*host).*slots);
  }

  void arrive_forward(std::int64_t q, std::int32_t s) {
    Visit& of = visit(forward, s, q);
    ++of.arrived;
    if (!of.placed()) {
      if (at(s).waiting_forward.contains(q)) return;
      if (!place_visit(of, s, &Host::forward_slots)) {
        at(s).waiting_forward.insert(q);
        return;
      }
    }
    send_forward(q, s);
  }

  void send_forward(std::int64_t q, std::int32_t s) {
    Visit& of = visit(forward, s, q);
    const plan::StageCost& cost = at(s).cost;
    for (; of.sent < of.arrived; ++of.sent) {
      const std::int64_t from = rows_from(of.sent), to = rows_to(of.sent);
      plan::PanelRun run{.each = {with_header(cost.boundary(to - from)), cost.forward(from, to),
                                  with_header(cost.boundary(to - from))},
                         .panels = 1,
                         .last_up = Bytes(0)};
      if (cost.is_head()) {
        run.each.up += Bytes(8 * (to - from));  // each row's maximum and sum; the loss comes of them
        if (of.sent + 1 == chunks) run.last_up = cost.norm_gradients();
      }
      submit({Errand::forward, of.device, s, 0, of.sent, q}, {kForward, q}, run, Bytes(0), false);
    }
  }

  void forward_done(const Purpose& purpose) {
    const std::int32_t s = purpose.stage;
    const std::int64_t q = purpose.sequence;
    Visit& of = visit(forward, s, q);
    ++of.done;
    book(of.device).in_hand -=
        static_cast<double>(at(s).cost.boundary(rows_to(purpose.chunk) - rows_from(purpose.chunk)).value());
    if (of.done == chunks) {
      leave_visit(of, s, &Host::forward_slots);
      place_waiting_forward(s);
    }
    if (s < top()) {
      arrive_forward(q, s + 1);
      if (s + 1 == top() && of.done == std::max<std::int64_t>(1, chunks - 1)) want_backward(q, s);
      return;
    }
    if (of.done < chunks) return;
    if (--at(s).backward_left == 0) norms_done(s);
    own_visited(q, s);
    sum_elsewhere(q, s);
    if (s == lowest) return bottom_done();
    sum_elsewhere(q, s - 1);
    for (std::int64_t c = 0; c < chunks; ++c) arrive_backward(q, s - 1);
  }

  void place_waiting_forward(std::int32_t s) {
    std::set<std::int64_t>& waiting = at(s).waiting_forward;
    while (!waiting.empty()) {
      const std::int64_t q = *waiting.begin();
      if (!place_visit(visit(forward, s, q), s, &Host::forward_slots)) return;
      waiting.erase(waiting.begin());
      send_forward(q, s);
    }
  }

  // X goes to the replica that will take the sequence backward, ahead of dY.
  void want_backward(std::int64_t q, std::int32_t s) {
    if (s < lowest) return;
    Visit& of = visit(backward, s, q);
    if (of.wanted) return;
    of.wanted = true;
    if (place_visit(of, s, &Host::backward_slots)) {
      open_backward(q, s);
    } else {
      at(s).waiting_backward.insert(q);
    }
  }

  void open_backward(std::int64_t q, std::int32_t s) {
    const Visit& of = visit(backward, s, q);
    const plan::StageCost& cost = at(s).cost;
    plan::PanelRun run;
    run.panels = chunks;
    run.each.down = with_header(Bytes((cost.boundary(work.seq).value() + chunks - 1) / chunks));
    run.each.flops = cost.remake(0, work.seq) * (1.0 / static_cast<double>(chunks));
    run.last_up = plan::kMessageHeader;
    submit({Errand::remake, of.device, s, 0, 0, q}, {kBackward, 2 * q}, run, Bytes(0), false);
    send_backward(q, s);
  }

  void arrive_backward(std::int64_t q, std::int32_t s) {
    Visit& of = visit(backward, s, q);
    ++of.arrived;
    want_backward(q, s);
    if (of.placed()) send_backward(q, s);
  }

  void send_backward(std::int64_t q, std::int32_t s) {
    Visit& of = visit(backward, s, q);
    const plan::StageCost& cost = at(s).cost;
    for (; of.sent < of.arrived; ++of.sent) {
      const std::int64_t chunk = chunks - 1 - of.sent, from = rows_from(chunk), to = rows_to(chunk);
      const bool wanted = s > lowest || server.trains_embeddings();
      plan::PanelRun run{.each = {with_header(cost.boundary(to - from)), cost.backward(from, to),
                                  with_header(wanted ? cost.boundary(to - from) : Bytes(0))},
                         .panels = 1,
                         .last_up = Bytes(0)};
      if (chunk == 0) run.last_up = cost.norm_gradients();
      const auto number = static_cast<std::int32_t>(chunk);
      submit({Errand::backward, of.device, s, 0, number, q}, {kBackward, 2 * q + 1}, run, Bytes(0), false);
      if (of.sent > 0) continue;
      for (std::int32_t hop = 1; hop <= kLookAhead; ++hop) want_backward(q, s - hop);
    }
  }

  void backward_done(const Purpose& purpose) {
    const std::int32_t s = purpose.stage;
    const std::int64_t q = purpose.sequence;
    Visit& of = visit(backward, s, q);
    ++of.done;
    book(of.device).in_hand -=
        static_cast<double>(at(s).cost.boundary(rows_to(purpose.chunk) - rows_from(purpose.chunk)).value());
    if (of.done == chunks) {
      leave_visit(of, s, &Host::backward_slots);
      place_waiting_backward(s);
    }
    if (s > lowest) arrive_backward(q, s - 1);
    if (of.done < chunks) return;
    if (--at(s).backward_left == 0) norms_done(s);
    own_visited(q, s);
    if (s > lowest) return sum_elsewhere(q, s - 1);
    bottom_done();
  }

  void place_waiting_backward(std::int32_t s) {
    std::set<std::int64_t>& waiting = at(s).waiting_backward;
    while (!waiting.empty()) {
      const std::int64_t q = *waiting.begin();
      if (!place_visit(visit(backward, s, q), s, &Host::backward_slots)) return;
      waiting.erase(waiting.begin());
      open_backward(q, s);
    }
  }

  // A sequence is through at the lowest stage.
  void bottom_done() {
    if (at(lowest).backward_left == 0) server.residual_gradient_done();
  }

  void norms_done(std::int32_t s) {
    const std::function<void(TensorId)> nothing = [](TensorId) {},
                                        done = [&](TensorId norm) { server.source_done(norm); };
    for_sources(plan.stages[static_cast<std::size_t>(s)], nothing, done);
  }

  // ---- gradients

  bool wants(OwnerState& of, std::int64_t q) {
    if (q % plan.groups[static_cast<std::size_t>(of.stage)] != of.group) return false;
    return !of.seen[static_cast<std::size_t>(q)];
  }

  // X and dY of a sequence at a stage are at the server: owners get it that will not run it, or did not.
  void sum_elsewhere(std::int64_t q, std::int32_t s) {
    const Visit& ran = visit(s == top() ? forward : backward, s, q);
    for (const std::int32_t index : at(s).owners) {
      OwnerState& of = owner[static_cast<std::size_t>(index)];
      if (!wants(of, q)) continue;
      if (of.replica && (!ran.placed() || ran.device == of.device)) continue;  // own_visited() sees to it
      of.seen[static_cast<std::size_t>(q)] = true;
      plan::PanelRun run;
      run.panels = std::min(chunks, kOperandPanels);
      run.each.down = with_header(Bytes((of.cost.operands.value() + run.panels - 1) / run.panels));
      run.each.flops = of.cost.alone * (1.0 / static_cast<double>(run.panels));
      run.last_up = plan::kMessageHeader;
      submit({Errand::sum, of.device, s, index, 0, q}, {kOperands, q}, run, Bytes(0), false);
    }
  }

  // A sequence has passed: a replica that ran it and owns slices has its operands.
  void own_visited(std::int64_t q, std::int32_t s) {
    const Visit& ran = visit(s == top() ? forward : backward, s, q);
    for (const std::int32_t index : at(s).owners) {
      OwnerState& of = owner[static_cast<std::size_t>(index)];
      if (!of.replica || ran.device != of.device || !wants(of, q)) continue;
      of.seen[static_cast<std::size_t>(q)] = true;
      const plan::PanelRun run{
          .each = {Bytes(0), of.cost.beside, plan::kMessageHeader}, .panels = 1, .last_up = Bytes(0)};
      submit({Errand::sum, of.device, s, index, 0, q}, {kOperands, q}, run, Bytes(0), false);
    }
    sum_elsewhere(q, s);
  }

  void summed(const Purpose& purpose) {
    OwnerState& of = owner[static_cast<std::size_t>(purpose.owner)];
    if (--of.left > 0) return;
    plan::PanelRun run;
    run.panels = std::max<std::int64_t>(1, of.sums.value() / kWeightPanel);
    run.each.up = with_header(Bytes((of.sums.value() + run.panels - 1) / run.panels));
    submit({Errand::send_sums, of.device, of.stage, purpose.owner, 0, 0}, {kSums, of.stage}, run, Bytes(0), false);
  }

  void sums_in(const Purpose& purpose) {
    if (--at(purpose.stage).gradients_left > 0) return;
    const std::function<void(TensorId)> done = [&](TensorId tensor) { server.source_done(tensor); },
                                        nothing = [](TensorId) {};
    for_sources(plan.stages[static_cast<std::size_t>(purpose.stage)], done, nothing);
  }

  // ---- events

  void handle(const Event& event) {
    if (event.kind == EventKind::kernel_done) {
      if (!server.kernel_done(event.op)) return;
      for (std::int64_t q = 0; q < batch; ++q) {
        for (std::int64_t c = 0; c < chunks; ++c) arrive_forward(q, 0);
      }
      return;
    }
    if (event.kind != EventKind::done) return;
    const Purpose* const found = purposes.find(event.tasklet);
    if (found == nullptr) return;
    const Purpose purpose = *found;
    purposes.remove(event.tasklet);
    book(purpose.device).contributed = true;
    switch (purpose.errand) {
      case Errand::forward: return forward_done(purpose);
      case Errand::backward: return backward_done(purpose);
      case Errand::sum: return summed(purpose);
      case Errand::send_sums: return sums_in(purpose);
      case Errand::remake:
      case Errand::weights: return;
    }
  }

  bool complete() const {
    return server.complete() && std::ranges::all_of(stage, [](const StageState& s) { return s.gradients_left == 0; });
  }
};

StageScheduler::StageScheduler(Fleet& fleet, const model::StepGraph& graph, StageSchedulerOptions options)
    : StageScheduler(fleet, graph,
                     plan::plan_stages(plan::stage_work_of(graph, options.wire), profiles_of(fleet), options.stages),
                     options) {}
StageScheduler::StageScheduler(Fleet& fleet, const model::StepGraph& graph, plan::StagePlan plan,
                               StageSchedulerOptions options)
    : impl_(std::make_unique<Impl>(fleet, graph, std::move(plan), std::move(options))) {}
StageScheduler::~StageScheduler() = default;

const plan::StagePlan& StageScheduler::plan() const { return impl_->plan; }

StepReport StageScheduler::run(const KeepGoing& keep_going) {
  Impl& self = *impl_;
  const Seconds start = self.fleet.now();
  const std::vector<Usage> before(self.fleet.usage().begin(), self.fleet.usage().end());
  self.begin();
  for (std::int64_t events = 0; !self.complete(); ++events) {
    if (keep_going && events % kEventsBetweenQuestions == 0 && !keep_going()) throw Interrupted{};
    const Event event = self.fleet.next_event(Seconds(std::numeric_limits<double>::infinity()));
    CLEAVE_ASSERT(event.kind != EventKind::timeout, "nothing is under way, and the step is not complete");
    self.handle(event);
  }
  for (const auto& [load, device] : self.loads) {
    if (self.book(device).present) self.fleet.release(load, DeviceId(device));
  }
  self.report.time = self.fleet.now() - start;
  self.report.devices = std::ranges::count(self.device, true, &DeviceBook::contributed);
  const std::span<const Usage> after = self.fleet.usage();
  for (const plan::DeviceState& state : self.fleet.devices()) {
    const auto i = static_cast<std::size_t>(state.profile.id.value);
    Usage used = after[i];
    used.down -= before[i].down;
    used.compute -= before[i].compute;
    used.up -= before[i].up;
    self.report.energy += energy_of(state.profile, used, self.report.time);
  }
  return self.report;
}

}  // namespace cleave::sched
