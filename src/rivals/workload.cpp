// From StepGraph to units, and even cuts of them.
#include "workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/model/pieces.hpp"

namespace cleave::rivals {

namespace {

// kLayer stands for the whole layer, or for its attention half beside kMlp.
enum Part : std::size_t { kEmbedding, kLayer, kMlp, kHead, kParts };

// A graph of one layer has three parts: operations named after a layer, tables, and what follows the layers. `piece` is
// the operation's in that graph: 0 the attention half, 1 the MLP half.
Part part_of(const model::Operation& op, Granularity granularity, std::int64_t piece) {
  if (op.name != op.type) return granularity == Granularity::halves && piece == 1 ? kMlp : kLayer;
  const bool table = op.kind == model::OpKind::embed || op.kind == model::OpKind::embed_backward;
  return table ? kEmbedding : kHead;
}

// Sum of `value` over units [first, last), in their order.
template <class Value>
double sum_of(const std::vector<Unit>& units, std::size_t first, std::size_t last, Value value) {
  double sum = 0;
  for (std::size_t u = first; u < last; ++u) sum += value(units[u]);
  return sum;
}

}  // namespace

std::int64_t Workload::parameters(std::size_t first, std::size_t last) const {
  std::int64_t sum = 0;
  for (std::size_t u = first; u < last; ++u) sum += units[u].parameters;
  if (last == units.size() && first > 0) sum += tied_parameters;
  return sum;
}

double Workload::forward_flops(std::size_t first, std::size_t last) const {
  return sum_of(units, first, last, [](const Unit& unit) { return unit.forward_flops; });
}

double Workload::backward_flops(std::size_t first, std::size_t last) const {
  return sum_of(units, first, last, [](const Unit& unit) { return unit.backward_flops; });
}

double Workload::kept_bytes(std::size_t first, std::size_t last) const {
  return sum_of(units, first, last, [](const Unit& unit) { return unit.kept_bytes + unit.input_bytes; });
}

double Workload::input_bytes(std::size_t first, std::size_t last) const {
  return sum_of(units, first, last, [](const Unit& unit) { return unit.input_bytes; });
}

double Workload::largest_kept_bytes(std::size_t first, std::size_t last) const {
  double most = 0;
  for (std::size_t u = first; u < last; ++u) most = std::max(most, units[u].kept_bytes);
  return most;
}

std::int64_t Workload::total_parameters() const {
  std::int64_t sum = 0;
  for (const Unit& unit : units) sum += unit.parameters;
  return sum;
}

double Workload::step_flops() const {
  return static_cast<double>(batch) * (forward_flops(0, units.size()) + backward_flops(0, units.size()));
}

Workload describe_workload(const model::ModelConfig& config, std::int64_t batch, DType wire, Granularity granularity) {
  model::ModelConfig single = config;
  single.n_layer = 1;
  const model::StepGraph graph = model::build_step(
      single, {.kind = model::StepKind::train, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0});

  Workload workload;
  workload.batch = batch;
  workload.element = size_of(wire);
  const std::vector<std::int64_t> pieces = model::pieces_of_operations(graph);
  Unit parts[kParts];
  struct Trace {
    bool written_forward = false, by[kParts] = {}, read_backward_by[kParts] = {};
    Part writer = kHead;
  };
  std::vector<Trace> traces(graph.tensors.size());
  for (const model::Operation& op : graph.operations) {
    const Part part = part_of(op, granularity, pieces[static_cast<std::size_t>(op.id.value)]);
    const bool forward = op.phase == model::Phase::forward;
    if (op.phase == model::Phase::update) continue;
    (forward ? parts[part].forward_flops : parts[part].backward_flops) += model::flops_of(op).value();
    for (const model::TensorView& view : op.in) {
      if (!view.valid()) continue;
      Trace& trace = traces[static_cast<std::size_t>(view.tensor.value)];
      trace.by[part] = true;
      if (!forward) trace.read_backward_by[part] = true;
    }
    for (const model::TensorView& view : op.out) {
      if (!view.valid() || !forward) continue;
      Trace& trace = traces[static_cast<std::size_t>(view.tensor.value)];
      if (!trace.written_forward) trace.writer = part;
      trace.written_forward = true;
    }
  }
  for (const model::TensorSpec& tensor : graph.tensors) {
    const Trace& trace = traces[static_cast<std::size_t>(tensor.id.value)];
    if (tensor.role == model::TensorRole::parameter) {
      const Part owner = trace.by[kLayer] ? kLayer : trace.by[kMlp] ? kMlp : trace.by[kEmbedding] ? kEmbedding : kHead;
      parts[owner].parameters += tensor.elements();
      if (owner == kEmbedding && trace.by[kHead]) workload.tied_parameters += tensor.elements();
    } else if (tensor.role == model::TensorRole::activation && trace.written_forward &&
               trace.read_backward_by[trace.writer]) {  // what another part reads is that part's input
      parts[trace.writer].kept_bytes += static_cast<double>(tensor.elements() * workload.element);
    }
  }

  const auto boundary = static_cast<double>(config.seq_len * config.d_model * workload.element);
  workload.units.push_back(parts[kEmbedding]);
  workload.units.back().name = "embedding";
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    const bool halves = granularity == Granularity::halves;
    workload.units.push_back(parts[kLayer]);
    workload.units.back().name = fmt::format("{} {}", halves ? "attention" : "layer", layer);
    if (!halves) continue;
    workload.units.push_back(parts[kMlp]);
    workload.units.back().name = fmt::format("mlp {}", layer);
  }
  workload.units.push_back(parts[kHead]);
  workload.units.back().name = "head";
  for (std::size_t u = 0; u < workload.units.size(); ++u) {
    if (u > 0) workload.units[u].input_bytes = boundary;
    if (u + 1 < workload.units.size()) workload.units[u].output_bytes = boundary;
  }
  return workload;
}

std::vector<std::size_t> cut_evenly(const Workload& workload, std::size_t stages) {
  const std::size_t units = workload.units.size();
  CLEAVE_ASSERT(stages >= 1 && stages <= units, "{} stages of {} units", stages, units);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> flops(units + 1, 0), parameters(units + 1, 0);
  for (std::size_t u = 0; u < units; ++u) {
    flops[u + 1] = flops[u] + workload.units[u].forward_flops + workload.units[u].backward_flops;
    parameters[u + 1] = parameters[u] + static_cast<double>(workload.units[u].parameters);
  }
  const auto flops_of = [&](std::size_t first, std::size_t last) { return flops[last] - flops[first]; };
  const auto parameters_of = [&](std::size_t first, std::size_t last) {
    const bool copy = last == units && first > 0;
    return parameters[last] - parameters[first] + (copy ? static_cast<double>(workload.tied_parameters) : 0);
  };

  // Smallest maximum of `weight` over the stages, all of them within `limit` FLOP; boundaries into `cuts`.
  std::vector<std::size_t> cuts(stages + 1, units);
  const auto solve = [&](const auto& weight, double limit) {
    std::vector<std::vector<double>> best(stages + 1, std::vector<double>(units + 1, kNever));
    std::vector<std::vector<std::size_t>> from(stages + 1, std::vector<std::size_t>(units + 1, 0));
    best[0][0] = 0;
    for (std::size_t s = 1; s <= stages; ++s) {
      for (std::size_t end = s; end + (stages - s) <= units; ++end) {
        for (std::size_t start = s - 1; start < end; ++start) {
          if (flops_of(start, end) > limit) continue;
          const double value = std::max(best[s - 1][start], weight(start, end));
          if (value < best[s][end]) {
            best[s][end] = value;
            from[s][end] = start;
          }
        }
      }
    }
    for (std::size_t s = stages; s > 0; --s) cuts[s - 1] = from[s][cuts[s]];
    return best[stages][units];
  };
  const double most_flops = solve(flops_of, kNever);
  cuts.assign(stages + 1, units);
  solve(parameters_of, most_flops * (1 + 1e-12));  // prefix sums round
  return cuts;
}

}  // namespace cleave::rivals
