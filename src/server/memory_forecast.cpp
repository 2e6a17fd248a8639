// Books of a step's memory, kept along a simulated run of it.
#include "cleave/server/memory_forecast.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cleave/model/family.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/pieces/stage_parts.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "memory_books.hpp"
#include "stages/tiled_stages.hpp"
#include "step_history.hpp"

namespace cleave::server {

namespace {

/// What a server process grows by once it runs, beside tensors and messages, as measured (bench/memory.sh): pages of
/// code that it had not touched before, files under way, and buffers that Open MPI shares with each rank of the host.
/// With few ranks those are part of what any run takes.
constexpr double kMebibyte = 1 << 20;
constexpr double kLeastRuntime = 12 * kMebibyte, kRuntime = 6 * kMebibyte, kRuntimeOfRank = 2.1 * kMebibyte;

Bytes runtime_beside(const DeviceRanks& ranks) {
  const auto sharing = static_cast<double>(std::ranges::count(ranks.shares_memory, true));
  return Bytes(static_cast<std::int64_t>(std::max(kLeastRuntime, kRuntime + kRuntimeOfRank * sharing)));
}

// The device that took most.
void note_device_peak(MemoryForecast& memory, const sched::Fleet& fleet,
                      const std::vector<fleet::DeviceProfile>& devices) {
  for (std::size_t i = 0; i < fleet.usage().size(); ++i) {
    if (fleet.usage()[i].memory_peak <= memory.device_peak) continue;
    memory.device_peak = fleet.usage()[i].memory_peak;
    memory.device_name = devices[i].name;
  }
}

/// A simulated fleet that notes when messages of a step in stages come and go. Weights leave together.
class StageMemoryFleet final : public sched::ForwardingFleet<> {
 public:
  StageMemoryFleet(const TrainerOptions& options, const model::StepGraph& graph, const plan::StagePlan& plan,
                   const DeviceRanks& ranks)
      : ForwardingFleet(model_),
        model_(options.devices, options.server(), options.wire),
        ranks_(ranks),
        wire_(options.wire),
        graph_(graph),
        work_(plan::with_head_parts(plan::stage_work_of(graph, options.wire), plan.head_parts)),
        tensors_(graph, options.wire),
        places_(options, graph),
        messages_(ranks) {
    pieces::PieceTable table(graph);
    find_tiles(plan, table);
    for (const model::TensorSpec& tensor : graph.tensors) {
      if (tensor.role == model::TensorRole::gradient) gradient_of_[tensor.parameter] = tensor.id;
    }
    for (const plan::Stage& stage : plan.stages) {
      if (stage.first >= table.head() && plan.head_parts > 1) {  // parts of the head are sent
        small_weights_.emplace_back(std::numeric_limits<std::int64_t>::max());
        continue;
      }
      std::int64_t small = 0;
      for (const auto& [id, part] : pieces::parameters_of_stage(table, stage.first, stage.end)) {
        const std::int64_t bytes = graph.tensor(id).elements() * size_of(DType::f32);
        if (!comm::is_large_frame(bytes)) small += bytes;
      }
      small_weights_.emplace_back(small);
    }
  }

  void submit(const sched::Tasklet& tasklet) override {
    if (tasklet.errand == sched::Errand::weights) {
      messages_.sent_unanswered(weights_sent(tasklet), tasklet.piece.device);
    } else if (tasklet.piece.device != kServerDevice) {
      messages_.sent(as_sent(tasklet), places_.in_place(tasklet));
    }
    if (!tasklet.is_run()) tensors_.ask(graph_.operation(tasklet.op), tasklet.piece.box);
    if (tasklet.errand == sched::Errand::send_sums) {
      for (const plan::PieceSlice& slice : *tasklet.item.slices) need_gradients(slice);
    }
    model_.submit(tasklet);
  }
  void start(const model::Operation& kernel) override {
    if (tiled_.runs(kernel.id)) tensors_.begin(kernel);
    for (const auto* views : {&kernel.in, &kernel.out}) {
      for (const model::TensorView& view : *views) {
        if (view.valid() && graph_.tensor(view.tensor).role == model::TensorRole::gradient) tensors_.need(view.tensor);
      }
    }
    model_.start(kernel);
  }
  void retire(OpId id) override {
    tensors_.retire(graph_.operation(id));
    model_.retire(id);
  }
  void begin_tiles(std::int32_t stage, bool back) override {
    const TensorId read = tiled_.of(stage, back).read;
    if (read.valid()) tensors_.need(read);
    model_.begin_tiles(stage, back);
  }
  void end_tiles(std::int32_t stage, bool back) override {
    const TensorId made = tiled_.of(stage, back).made;
    if (made.valid()) tensors_.drop(made);
    model_.end_tiles(stage, back);
  }
  sched::Event next_event(Seconds deadline) override {
    const sched::Event event = model_.next_event(deadline);
    if (event.kind == sched::EventKind::done) messages_.answered(event.tasklet);
    return event;
  }
  [[nodiscard]] Bytes messages() const { return messages_.peak(); }
  /// Gradients, and what stages have that run in tiles.
  [[nodiscard]] const TensorBooks& tensors() const { return tensors_; }

 private:
  void need_gradients(const plan::PieceSlice& slice) {
    for (const model::SlicedTensor& sliced : work_.pieces[static_cast<std::size_t>(slice.piece)].tensors) {
      const auto found = gradient_of_.find(sliced.tensor);
      if (found != gradient_of_.end()) tensors_.need(found->second);
    }
  }

  // What the lowest stage reads and returns is counted with the boundaries.
  void find_tiles(const plan::StagePlan& plan, pieces::PieceTable& table) {
    tiled_ = TiledStages(table, plan);
    std::vector<TensorId> elsewhere{table.program(0).x(), table.program(0).dx()};
    std::erase_if(elsewhere, [](TensorId id) { return !id.valid(); });
    tensors_.run_only(tiled_.operations(), tiled_.made(), elsewhere);
  }

  // A replica that shares memory reads large parameters where they are (StageNumbers::find_places).
  [[nodiscard]] Bytes weights_sent(const sched::Tasklet& load) const {
    const auto rank = static_cast<std::size_t>(rank_of(load.piece.device, ranks_.count()) - 1);
    const bool in_place = load.item.weights && load.item.owner < 0 && wire_ == DType::f32 && ranks_.shares_memory[rank];
    return in_place ? std::min(load.piece.bytes_down, small_weights_[static_cast<std::size_t>(load.stage)])
                    : load.piece.bytes_down;
  }
  // Partial sums that do not fit the type of the wire come in 64 bits.
  [[nodiscard]] sched::Tasklet as_sent(sched::Tasklet tasklet) const {
    if (tasklet.errand == sched::Errand::send_sums && tasklet.item.partial)
      tasklet.piece.bytes_up =
          Bytes(tasklet.piece.bytes_up.value() * size_of(DType::i64) / size_of(partial_sum_type(wire_)));
    return tasklet;
  }

  sched::SimulatedFleet model_;
  DeviceRanks ranks_;
  DType wire_;
  const model::StepGraph& graph_;
  plan::StageWork work_;
  std::map<TensorId, TensorId> gradient_of_;  // of a parameter
  TiledStages tiled_;
  TensorBooks tensors_;
  PlacesOfOperands places_;
  MessageBooks messages_;
  std::vector<Bytes> small_weights_;  // by stage, of parameters that have no memory which ranks share
};

/// A simulated fleet that notes when tensors, partial sums and messages come and go, as Executor and Exchange have it.
class MemoryFleet final : public sched::ForwardingFleet<> {
 public:
  MemoryFleet(const TrainerOptions& options, const model::StepGraph& graph, const DeviceRanks& ranks)
      : ForwardingFleet(model_),
        model_(options.devices, options.server(), options.wire),
        names_(options.devices),
        graph_(graph),
        tensors_(graph, options.wire),
        places_(options, graph),
        messages_(ranks) {}

  void submit(const sched::Tasklet& tasklet) override {
    if (tasklet.stays_on_device()) {
      messages_.sent_unanswered(tasklet.piece.bytes_down);
      return model_.submit(tasklet);
    }
    tensors_.ask(graph_.operation(tasklet.op), tasklet.piece.box);
    if (tasklet.piece.device != kServerDevice) messages_.sent(tasklet, places_.in_place(tasklet));
    model_.submit(tasklet);
  }
  void start(const model::Operation& kernel) override {
    tensors_.begin(kernel);
    model_.start(kernel);
  }
  void retire(OpId id) override {
    tensors_.retire(graph_.operation(id));
    model_.retire(id);
  }
  sched::Event next_event(Seconds deadline) override {
    const sched::Event event = model_.next_event(deadline);
    if (event.kind == sched::EventKind::done) messages_.answered(event.tasklet);
    return event;
  }

  void write(MemoryForecast& memory) const {
    memory.activations = tensors_.tensors();
    memory.sums = tensors_.sums();
    memory.messages = messages_.peak();
    memory.pool = tensors_.pool();
    // With several tasklets in its hands at once a device takes more than the largest of them does.
    note_device_peak(memory, model_, names_);
  }

 private:
  sched::SimulatedFleet model_;
  std::vector<fleet::DeviceProfile> names_;
  const model::StepGraph& graph_;
  TensorBooks tensors_;
  PlacesOfOperands places_;
  MessageBooks messages_;
};

MemoryForecast forecast_tensors(const TrainerOptions& options, const model::StepGraph& graph) {
  MemoryForecast memory;
  std::int64_t elements = graph.parameter_count(), trained = 0;
  for (const model::Operation& op : graph.operations) {
    if (op.kind == model::OpKind::adamw) trained += graph.tensor(op.out[0].tensor).elements();
  }
  elements += 2 * trained;
  const std::int64_t rollback = options.executor.verification.rollback;
  if (rollback > 0) memory.history = Bytes(StepHistory::copies(rollback) * 3 * 4 * trained);
  memory.parameters = Bytes(elements * 4);
  memory.activations = memory.pool = model::peak_activation_bytes(graph);
  return memory;
}

Bytes evaluation_tensors(const TrainerOptions& options) {
  if (options.train.eval_every == 0) return Bytes(0);
  model::StepOptions step = sched::graph_options(options, 1);
  step.kind = model::StepKind::evaluate;
  return model::peak_activation_bytes(model::build_step(options.model, step));
}

constexpr std::int64_t kSequencesAtHead = 4;  // whose dX is not put together yet, as a rule

// Of a step in stages: every boundary between two stages, and its gradient, stays until the step ends, as it travels,
// beside what the lowest stage reads and returns; gradients of all parameters, and the sums of those that several
// owners have parts of. In fp32 such sums stay in their messages until all are there, unless verification wants them.
MemoryForecast forecast_stages(const TrainerOptions& options, const DeviceRanks& ranks) {
  const model::StepGraph graph =
      model::graph_of_stages({options.model, options.batch, options.freeze, options.wire, options.boundary});
  MemoryForecast memory = forecast_tensors(options, graph);
  const sched::StageSchedulerOptions how = sched::stage_scheduler_options(options);
  const plan::StageWork whole = plan::stage_work_of(graph, options.wire);
  const plan::StagePlan plan =
      options.stage_plan ? *options.stage_plan : plan::plan_stages(whole, options.devices, how.stages);
  const plan::StageWork work = plan::with_head_parts(whole, plan.head_parts);
  StageMemoryFleet fleet(options, graph, plan, ranks);
  sched::StageScheduler scheduler(fleet, graph, plan, how);
  const sched::StepReport report = scheduler.run();
  std::int64_t sums = 0;
  const bool verified = options.executor.verification.mode != VerifyMode::off;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::StageCost cost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk);
    if (plan.groups[s] < 2) continue;
    const std::int64_t totals = verified || options.wire != DType::f32 ? 1 : 0, kept = verified ? plan.groups[s] : 0;
    sums += (totals + kept) * static_cast<std::int64_t>(cost.gradient_elements()) * size_of(DType::i64);
  }
  const std::int64_t tokens = graph.batch * graph.seq, width = options.model.d_model;
  const std::int64_t between = (std::ssize(plan.stages) - plan.head_parts) * row_bytes(work.boundary, width),
                     lowest = row_bytes(DType::f32, width);
  // An evaluation is in tiles; the boundaries of the step before it stay.
  const Bytes of_step = Bytes(2 * tokens * lowest) + fleet.tensors().tensors();
  memory.activations = Bytes(2 * tokens * between) + std::max(of_step, evaluation_tensors(options));
  // A head in parts: maxima and sums of vocabulary blocks, and shares of dX of sequences that wait for other parts.
  if (plan.head_parts > 1) {
    sums += tokens * (2 * vocabulary_blocks(options.model.vocab_size) + 1) * size_of(DType::f32);
    sums += (verified ? graph.batch : std::min<std::int64_t>(graph.batch, kSequencesAtHead)) * plan.head_parts *
            graph.seq * options.model.d_model * size_of(partial_sum_type(options.wire));
  }
  memory.sums = Bytes(sums) + fleet.tensors().sums();
  memory.pool = memory.activations + memory.sums;
  memory.messages = fleet.messages();
  memory.step = report.time;
  memory.tasklets = report.tasklets;
  note_device_peak(memory, fleet, options.devices);
  memory.process = measure_process_memory().now;
  memory.runtime = runtime_beside(ranks);
  return memory;
}

}  // namespace

MemoryForecast forecast_tensors(const TrainerOptions& options) {
  return forecast_tensors(options, training_graph(options));
}

ProcessMemory measure_process_memory() {
  std::ifstream in("/proc/self/status");
  ProcessMemory memory;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) memory.now = Bytes(std::stoll(line.substr(6)) * 1024);
    if (line.starts_with("VmHWM:")) memory.peak = Bytes(std::stoll(line.substr(6)) * 1024);
  }
  return memory;
}

MemoryForecast forecast_memory(const TrainerOptions& options, const DeviceRanks& ranks) {
  if (options.layout.layout == sched::Layout::stages) return forecast_stages(options, ranks);
  const model::StepGraph graph = training_graph(options);
  MemoryForecast memory = forecast_tensors(options, graph);
  MemoryFleet fleet(options, graph, ranks);
  std::optional<sched::QuorumFleet> quorum;
  if (options.paired_in_tiles() > 0) quorum.emplace(fleet, sched::quorum_options(options));
  sched::Scheduler scheduler(quorum ? static_cast<sched::Fleet&>(*quorum) : fleet, scheduling(options));
  const sched::StepReport report = scheduler.run(graph);
  memory.step = report.time;
  memory.tasklets = report.tasklets;
  fleet.write(memory);
  memory.process = measure_process_memory().now;  // with the books that the run's own scheduler and fleet will keep
  memory.runtime = runtime_beside(ranks);
  return memory;
}

}  // namespace cleave::server
