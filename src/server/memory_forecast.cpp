// Books of a step's memory, kept along a simulated run of it.
#include "cleave/server/memory_forecast.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/comm/frame_size.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/pieces/stage_parts.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cleave/sched/quorum_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "step_history.hpp"
#include "tensor_lifetimes.hpp"
#include "window.hpp"

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

/// Memory that ranks of one host share is taken in huge pages, by each rank its own.
constexpr std::int64_t in_huge_pages(std::int64_t bytes) {
  constexpr auto kPage = static_cast<std::int64_t>(kHugePage);
  if (bytes < kPage) return bytes;  // of the first one no more than what is used
  return (bytes + kPage - 1) / kPage * kPage;
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

/// Messages under way, as Exchange has them.
class MessageBooks {
 public:
  explicit MessageBooks(DeviceRanks ranks)
      : shares_memory_(std::move(ranks.shares_memory)), ranks_(shares_memory_.size()) {}

  /// `in_place`: operands are read where the server keeps them, by whoever shares memory with it.
  void sent(const sched::Tasklet& tasklet, bool in_place = false) {
    const plan::TaskletPlan& piece = tasklet.piece;
    const std::size_t to = index_of(piece.device);
    const Bytes task = in_place && shares_memory_[to] ? plan::kMessageHeader : piece.bytes_down;
    const UnderWay of{to, task.value(), piece.bytes_up.value()};
    under_way_[tasklet.id] = of;
    Rank& rank = ranks_[of.rank];
    const std::size_t kind = comm::frame_kind(of.task);
    rank.tasks[kind] += comm::frame_memory(of.task);
    std::int64_t& results = comm::is_large_frame(of.result) ? rank.results : small_results_;
    results += of.result;
    rank.results_peak = std::max(rank.results_peak, rank.results);
    small_results_peak_ = std::max(small_results_peak_, small_results_);
    largest_ = std::max({largest_, of.task, of.result});
    std::int64_t tasks = 0;
    for (const Rank& each : ranks_) tasks += most_under_way(each.tasks[kind], largest_);
    tasks_peaks_[kind] = std::max(tasks_peaks_[kind], tasks);
  }
  /// Of a message that nobody answers and that is sent alone.
  void sent_unanswered(Bytes bytes) { largest_ = std::max(largest_, bytes.value()); }
  /// Of one that is sent with others of its kind, all at once.
  void sent_unanswered(Bytes bytes, DeviceId to) {
    sent_unanswered(bytes);
    Together& together = ranks_[index_of(to)].unanswered[comm::frame_kind(bytes.value())];
    const std::int64_t memory = comm::frame_memory(bytes.value());
    together.sum += memory;
    together.largest = std::max(together.largest, memory);
  }
  void answered(TaskletId tasklet) {
    const auto found = under_way_.find(tasklet);
    if (found == under_way_.end()) return;
    Rank& rank = ranks_[found->second.rank];
    const std::int64_t task = found->second.task;
    rank.tasks[comm::frame_kind(task)] -= comm::frame_memory(task);
    (comm::is_large_frame(found->second.result) ? rank.results : small_results_) -= found->second.result;
    under_way_.erase(found);
  }
  /// What is needed at most, each kind for itself.
  [[nodiscard]] Bytes peak() const {
    std::int64_t sum = small_results_peak_;
    for (std::size_t kind = 0; kind < comm::kFrameKinds; ++kind) {
      const std::int64_t tasks = std::max(tasks_peaks_[kind], unanswered_peak(kind));
      sum += kind + 1 == comm::kFrameKinds ? in_huge_pages(tasks) : tasks;
    }
    for (const Rank& rank : ranks_) sum += in_huge_pages(rank.results_peak);
    return Bytes(sum);
  }

 private:
  struct Together {
    std::int64_t sum = 0, largest = 0;  // bytes of memory
  };
  struct UnderWay {
    std::size_t rank = 0;
    std::int64_t task = 0, result = 0;  // bytes
  };
  // What is under way to and from one rank. Results may be there long before their turn has come, and each rank writes
  // large ones in memory of its own, which is kept.
  struct Rank {
    std::array<std::int64_t, comm::kFrameKinds> tasks{};   // by kind of frame
    std::array<Together, comm::kFrameKinds> unanswered{};  // likewise
    std::int64_t results = 0, results_peak = 0;
  };
  // Who shares memory reads small ones while the next are written, at about that pace: half of them are there at once.
  // From a huge page on the reader, to whose process those pages are new, is slower. Others have theirs carried, later
  // than they are written.
  [[nodiscard]] std::int64_t unanswered_peak(std::size_t kind) const {
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Together& of = ranks_[rank].unanswered[kind];
      const bool at_pace = shares_memory_[rank] && of.largest < static_cast<std::int64_t>(kHugePage);
      sum += at_pace ? std::max(of.largest, of.sum / 2) : of.sum;
    }
    return sum;
  }
  [[nodiscard]] std::size_t index_of(DeviceId device) const {
    return static_cast<std::size_t>(rank_of(device, static_cast<int>(ranks_.size())) - 1);
  }

  std::map<TaskletId, UnderWay> under_way_;
  std::vector<bool> shares_memory_;
  std::vector<Rank> ranks_;
  std::array<std::int64_t, comm::kFrameKinds> tasks_peaks_{};
  std::int64_t small_results_ = 0, small_results_peak_ = 0, largest_ = 0;
};

/// Whether operands of an operation in tiles can be read where they are, as Gather has it: they lie in memory of their
/// own, are not rounded, and nobody may see which blocks are looked at.
class PlacesOfOperands {
 public:
  PlacesOfOperands(const TrainerOptions& options, const model::StepGraph& graph) : graph_(graph) {
    const VerifyMode mode = options.executor.verification.mode;
    plain_ = options.wire == DType::f32 && (mode == VerifyMode::off || mode == VerifyMode::quorum);
  }
  [[nodiscard]] bool in_place(const sched::Tasklet& tasklet) const {
    if (!plain_ || tasklet.is_run() || tasklet.columns.valid()) return false;
    return std::ranges::all_of(graph_.operation(tasklet.op).in, [&](const model::TensorView& view) {
      return comm::is_large_frame(graph_.tensor(view.tensor).elements() * size_of(DType::f32));
    });
  }

 private:
  const model::StepGraph& graph_;
  bool plain_ = false;
};

/// Tensors and partial sums that operations have, as TensorStore and Workspace keep them.
class TensorBooks {
 public:
  TensorBooks(const model::StepGraph& graph, DType wire)
      : graph_(graph), wire_(wire), lifetimes_(graph), alive_(graph.tensors.size(), false) {}
  /// As TensorStore::run_only(). `elsewhere`: what others count.
  void run_only(std::span<const OpId> operations, std::span<const TensorId> held, std::span<const TensorId> elsewhere) {
    lifetimes_.begin_part(operations, held);
    for (const TensorId id : elsewhere) alive_[static_cast<std::size_t>(id.value)] = true;
    elsewhere_.assign(elsewhere.begin(), elsewhere.end());
  }

  void begin(const model::Operation& op) {
    lifetimes_.begin(op, [&](TensorId id) { need(id); });
    note();
  }
  void need(TensorId id) {
    const auto at = static_cast<std::size_t>(id.value);
    if (alive_[at]) return;
    alive_[at] = true;
    grow(tensor_bytes_, tensor_peak_, bytes_of(id));
  }
  void drop(TensorId id) {
    if (!alive_[static_cast<std::size_t>(id.value)] || std::ranges::find(elsewhere_, id) != elsewhere_.end()) return;
    alive_[static_cast<std::size_t>(id.value)] = false;
    tensor_bytes_ -= bytes_of(id);
  }
  /// A block of a product is asked for.
  void ask(const model::Operation& op, const GemmBox& box) {
    begin(op);
    if (op.kind == model::OpKind::gemm && (box.k0 > 0 || box.k1 < op.gemm.k)) {
      std::int64_t& sum = sums_[op.id];
      if (sum == 0) {
        sum = op.gemm.m * op.gemm.n * size_of(partial_sum_type(wire_));
        grow(sum_bytes_, sum_peak_, sum);
      }
      // Finished blocks are converted one at a time, when the operation retires.
      if (box.k0 == 0) largest_finished_ = std::max(largest_finished_, box.m() * box.n() * 4);
    }
    note();
  }
  void retire(const model::Operation& op) {
    const auto sum = sums_.find(op.id);
    if (sum != sums_.end()) {
      sum_bytes_ -= sum->second;
      sums_.erase(sum);
    }
    lifetimes_.retire(op, [&](TensorId tensor) { drop(tensor); });
  }

  [[nodiscard]] Bytes tensors() const { return Bytes(tensor_peak_); }
  [[nodiscard]] Bytes sums() const { return Bytes(sum_peak_ + largest_finished_); }
  [[nodiscard]] Bytes pool() const { return Bytes(pool_peak_); }

 private:
  [[nodiscard]] std::int64_t bytes_of(TensorId id) const { return graph_.tensor(id).elements() * 4; }
  static void grow(std::int64_t& total, std::int64_t& peak, std::int64_t by) {
    total += by;
    peak = std::max(peak, total);
  }
  void note() {
    pool_peak_ = std::max(pool_peak_, tensor_bytes_ + sum_bytes_ + (sums_.empty() ? 0 : largest_finished_));
  }

  const model::StepGraph& graph_;
  DType wire_;
  TensorLifetimes lifetimes_;
  std::vector<bool> alive_;
  std::vector<TensorId> elsewhere_;
  std::unordered_map<OpId, std::int64_t> sums_;
  std::int64_t tensor_bytes_ = 0, tensor_peak_ = 0, sum_bytes_ = 0, sum_peak_ = 0, largest_finished_ = 0;
  std::int64_t pool_peak_ = 0;
};

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
        in_tiles_(graph, false),
        tensors_(graph, options.wire),
        places_(options, graph),
        messages_(ranks) {
    pieces::PieceTable table(graph);
    find_tiles(plan, table);
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
    if (in_tiles_.contains(kernel.id)) tensors_.begin(kernel);
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
    const TensorId read = boundaries_.at({stage, back}).read;
    if (read.valid()) tensors_.need(read);
  }
  void end_tiles(std::int32_t stage, bool back) override {
    const TensorId made = boundaries_.at({stage, back}).made;
    if (made.valid()) tensors_.drop(made);
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

  // As StageNumbers has them.
  void find_tiles(const plan::StagePlan& plan, pieces::PieceTable& table) {
    for (const model::TensorSpec& tensor : graph_.tensors) {
      if (tensor.role == model::TensorRole::gradient) gradient_of_[tensor.parameter] = tensor.id;
    }
    std::vector<OpId> operations;
    std::vector<TensorId> held;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const plan::Stage& stage = plan.stages[s];
      if (!stage.tiles) continue;
      for (const bool back : {false, true}) {
        for (const model::Operation* op : plan::operations_in_tiles(work_, stage.first, stage.end, back)) {
          in_tiles_.add(op->id);
          operations.push_back(op->id);
        }
        const pieces::Program &lowest = table.program(stage.first), &highest = table.program(stage.end - 1);
        Boundaries& of = boundaries_[{static_cast<std::int32_t>(s), back}];
        of = {back ? highest.dy() : lowest.x(), back ? lowest.dx() : highest.y()};
        if (of.made.valid()) held.push_back(of.made);
      }
    }
    // What the lowest stage reads and returns is counted with the boundaries.
    std::vector<TensorId> elsewhere{table.program(0).x(), table.program(0).dx()};
    std::erase_if(elsewhere, [](TensorId id) { return !id.valid(); });
    tensors_.run_only(operations, held, elsewhere);
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
  struct Boundaries {
    TensorId read, made;
  };
  std::map<std::pair<std::int32_t, bool>, Boundaries> boundaries_;  // of stages in tiles, forward and back
  sched::OperationSet in_tiles_;
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
    if (tasklet.brings_columns()) {
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
  const model::StepGraph graph = model::graph_of_stages({options.model, options.batch, options.freeze, options.wire});
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
  const std::int64_t boundary = graph.batch * graph.seq * options.model.d_model;
  const std::int64_t between = (std::ssize(plan.stages) - plan.head_parts) * size_of(options.wire),
                     lowest = size_of(DType::f32);
  // An evaluation is in tiles; the boundaries of the step before it stay.
  const Bytes of_step = Bytes(2 * boundary * lowest) + fleet.tensors().tensors();
  memory.activations = Bytes(2 * boundary * between) + std::max(of_step, evaluation_tensors(options));
  // A head in parts: maxima and sums of vocabulary blocks, and shares of dX of sequences that wait for other parts.
  if (plan.head_parts > 1) {
    const std::int64_t tokens = graph.batch * graph.seq;
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

MemoryForecast forecast_memory(const TrainerOptions& options, const DeviceRanks& ranks) {
  if (options.layout.layout == sched::Layout::stages) return forecast_stages(options, ranks);
  const model::StepGraph graph = training_graph(options);
  MemoryForecast memory = forecast_tensors(options, graph);
  MemoryFleet fleet(options, graph, ranks);
  std::optional<sched::QuorumFleet> quorum;
  if (options.paired > 0) quorum.emplace(fleet, sched::quorum_options(options));
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
