// Books of a step's memory, kept along a simulated run of it.
#include "commands/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <unordered_map>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

// What Exchange lets be under way to one rank before it waits for answers: this much, or two tasklets.
constexpr std::int64_t kWindow = 64LL << 20;

Bytes available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  std::int64_t kibibytes = 0;
  while (in >> name >> kibibytes) {
    std::getline(in, unit);
    if (name == "MemAvailable:") return Bytes(kibibytes * 1024);
  }
  return Bytes(std::int64_t{1} << 60);  // unknown: nothing is refused
}

/// A simulated fleet that notes when tensors, partial sums and messages come and go, as Executor and Exchange have it.
class MemoryFleet final : public sched::ForwardingFleet<> {
 public:
  MemoryFleet(const server::TrainerOptions& options, int device_ranks)
      : ForwardingFleet(model_),
        model_(options.devices, options.fleet.server, options.fleet.wire),
        wire_(options.fleet.wire),
        names_(options.devices),
        rank_bytes_(static_cast<std::size_t>(device_ranks)) {}

  void begin_step(const model::StepGraph& graph) override {
    graph_ = &graph;
    left_.assign(graph.tensors.size(), 0);
    alive_.assign(graph.tensors.size(), false);
    for (const model::Operation& op : graph.operations) {
      for (const TensorId id : touched(op)) ++left_[static_cast<std::size_t>(id.value)];
    }
    model_.begin_step(graph);
  }

  void submit(const sched::Tasklet& tasklet) override {
    const model::Operation& op = graph_->operation(tasklet.op);
    const plan::TaskletPlan& piece = tasklet.piece;
    if (tasklet.brings_columns()) {
      largest_message_ = std::max(largest_message_, piece.bytes_down.value());
      return model_.submit(tasklet);
    }
    begin(op);
    if (op.kind == model::OpKind::gemm && (piece.box.k0 > 0 || piece.box.k1 < op.gemm.k)) {
      std::int64_t& sum = sums_[op.id];
      if (sum == 0) {
        sum = op.gemm.m * op.gemm.n * size_of(partial_sum_type(wire_));
        grow(sum_bytes_, sum_peak_, sum);
      }
      // Finished blocks are converted one at a time, when the operation retires.
      if (piece.box.k0 == 0) largest_finished_ = std::max(largest_finished_, piece.box.m() * piece.box.n() * 4);
    }
    if (piece.device != kServerDevice) {
      const std::int64_t bytes = std::max(piece.bytes_down, piece.bytes_up).value();
      under_way_[tasklet.id] = {rank_of(piece.device), bytes};
      rank_bytes_[rank_of(piece.device)] += bytes;
      largest_message_ = std::max(largest_message_, bytes);
    }
    note();
    model_.submit(tasklet);
  }

  void start(const model::Operation& kernel) override {
    begin(kernel);
    note();
    model_.start(kernel);
  }

  void retire(OpId id) override {
    const auto sum = sums_.find(id);
    if (sum != sums_.end()) {
      sum_bytes_ -= sum->second;
      sums_.erase(sum);
    }
    for (const TensorId tensor : touched(graph_->operation(id))) {
      const auto at = static_cast<std::size_t>(tensor.value);
      if (--left_[at] == 0 && alive_[at]) tensor_bytes_ -= bytes_of(tensor);
    }
    model_.retire(id);
  }

  sched::Event next_event(Seconds deadline) override {
    const sched::Event event = model_.next_event(deadline);
    if (event.kind == sched::EventKind::done) {
      const auto sent = under_way_.find(event.tasklet);
      if (sent != under_way_.end()) {
        rank_bytes_[sent->second.rank] -= sent->second.bytes;
        under_way_.erase(sent);
      }
    }
    return event;
  }

  void write(MemoryPlan& memory) const {
    memory.activations = Bytes(tensor_peak_);
    memory.sums = Bytes(sum_peak_ + largest_finished_);
    memory.messages = Bytes(message_peak_);
    memory.peak = Bytes(peak_);
    // With several tasklets in its hands at once a device takes more than the largest of them does.
    for (std::size_t i = 0; i < model_.usage().size(); ++i) {
      if (model_.usage()[i].memory_peak <= memory.device_peak) continue;
      memory.device_peak = model_.usage()[i].memory_peak;
      memory.device_name = names_[i].name;
    }
  }

 private:
  struct UnderWay {
    std::size_t rank = 0;
    std::int64_t bytes = 0;
  };

  static std::vector<TensorId> touched(const model::Operation& op) {
    std::vector<TensorId> ids;
    for (const auto* views : {&op.in, &op.out}) {
      for (const model::TensorView& view : *views) {
        if (view.valid() && std::find(ids.begin(), ids.end(), view.tensor) == ids.end()) ids.push_back(view.tensor);
      }
    }
    return ids;
  }

  [[nodiscard]] std::size_t rank_of(DeviceId device) const {
    return static_cast<std::size_t>(device.value) % rank_bytes_.size();
  }
  [[nodiscard]] std::int64_t bytes_of(TensorId id) const { return graph_->tensor(id).elements() * 4; }
  static void grow(std::int64_t& total, std::int64_t& peak, std::int64_t by) {
    total += by;
    peak = std::max(peak, total);
  }

  void begin(const model::Operation& op) {
    for (const model::TensorView& view : op.out) {
      if (!view.valid()) continue;
      const model::TensorRole role = graph_->tensor(view.tensor).role;
      const auto at = static_cast<std::size_t>(view.tensor.value);
      if (alive_[at] || role == model::TensorRole::parameter || role == model::TensorRole::scalar) continue;
      alive_[at] = true;
      grow(tensor_bytes_, tensor_peak_, bytes_of(view.tensor));
    }
  }

  void note() {
    std::int64_t messages = 0;
    for (const std::int64_t waiting : rank_bytes_)
      messages += std::min(waiting, std::max(kWindow + largest_message_, 2 * largest_message_));
    message_peak_ = std::max(message_peak_, messages);
    peak_ = std::max(peak_, tensor_bytes_ + sum_bytes_ + messages + (sums_.empty() ? 0 : largest_finished_));
  }

  sched::SimulatedFleet model_;
  DType wire_;
  std::vector<fleet::DeviceProfile> names_;
  const model::StepGraph* graph_ = nullptr;
  std::vector<std::int64_t> left_;  // operations that have still to touch each tensor
  std::vector<bool> alive_;
  std::unordered_map<OpId, std::int64_t> sums_;
  std::map<TaskletId, UnderWay> under_way_;
  std::vector<std::int64_t> rank_bytes_;
  std::int64_t tensor_bytes_ = 0, tensor_peak_ = 0, sum_bytes_ = 0, sum_peak_ = 0, largest_finished_ = 0;
  std::int64_t largest_message_ = 0, message_peak_ = 0, peak_ = 0;
};

void refuse_if_too_large(const MemoryPlan& memory, const Input& input, std::int64_t seq) {
  const Bytes needed = memory.parameters + memory.peak;  // `process` is taken already
  if (needed <= memory.available) return;
  throw InputError(
      {Issue{.file = input.name,
             .line = 0,
             .key = "train.batch",
             .message = fmt::format("a step of {} sequences of {} tokens does not fit this host: parameters and "
                                    "moments {}, activations and gradients {}, partial sums {}, messages {}, and {} "
                                    "is free",
                                    input.train.batch, seq, show(memory.parameters), show(memory.activations),
                                    show(memory.sums), show(memory.messages), show(memory.available)),
             .hint = "a smaller batch, sequence or model"}});
}

}  // namespace

ProcessMemory measure_process_memory() {
  std::ifstream in("/proc/self/status");
  ProcessMemory memory;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) memory.now = Bytes(std::stoll(line.substr(6)) * 1024);
    if (line.starts_with("VmHWM:")) memory.peak = Bytes(std::stoll(line.substr(6)) * 1024);
  }
  return memory;
}

MemoryPlan plan_memory(const Input& input, const server::TrainerOptions& options, int device_ranks) {
  const model::StepGraph graph = model::build_step(options.model, {.kind = model::StepKind::train,
                                                                   .batch = input.train.batch,
                                                                   .clip = input.train.grad_clip > 0,
                                                                   .freeze = input.train.freeze,
                                                                   .loss_rows = 0,
                                                                   .row_groups = options.row_groups});
  MemoryPlan memory;
  memory.process = measure_process_memory().now;
  memory.available = available_memory();
  std::int64_t elements = graph.parameter_count();
  for (const model::Operation& op : graph.operations) {
    if (op.kind == model::OpKind::adamw) elements += 2 * graph.tensor(op.out[0].tensor).elements();
  }
  memory.parameters = Bytes(elements * 4);
  memory.activations = memory.peak = model::peak_activation_bytes(graph);
  refuse_if_too_large(memory, input, options.model.seq_len);  // without planning what is hopeless

  MemoryFleet fleet(options, device_ranks);
  (void)sched::Scheduler(fleet, {.plan = options.plan, .wire = options.executor.wire}).run(graph);
  fleet.write(memory);
  refuse_if_too_large(memory, input, options.model.seq_len);
  return memory;
}

}  // namespace cleave::app
