// Rewriting a StepGraph into the published system's operations.
#include "published_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"

namespace cleave::rivals {

namespace {

using model::Operation;
using model::OpKind;
using model::StepGraph;

// The weights of the linear layers that make Q, K, V of an attention or take its O.
std::set<TensorId> projections_of(const StepGraph& graph) {
  std::set<TensorId> operands, results, weights;
  for (const Operation& op : graph.operations) {
    if (op.kind != OpKind::attention_forward) continue;
    for (const model::TensorView& view : op.in) operands.insert(view.tensor);
    results.insert(op.out[0].tensor);
  }
  for (const Operation& op : graph.operations) {
    if (op.kind != OpKind::gemm || op.phase != model::Phase::forward) continue;
    if (operands.contains(op.out[0].tensor) || results.contains(op.in[0].tensor)) weights.insert(op.in[1].tensor);
  }
  return weights;
}

bool is_projection(const StepGraph& graph, const std::set<TensorId>& weights, const Operation& op) {
  if (op.kind != OpKind::gemm) return false;
  if (op.phase == model::Phase::weight_gradient) return weights.contains(graph.tensor(op.out[0].tensor).parameter);
  return weights.contains(op.in[1].tensor);
}

class Rewriting {
 public:
  explicit Rewriting(const StepGraph& merged) : merged_(merged), ends_(merged.operations.size()) {
    published_ = merged;
    published_.operations.clear();
  }

  StepGraph run() {
    const std::set<TensorId> weights = projections_of(merged_);
    for (const Operation& op : merged_.operations) {
      if (op.kind == OpKind::attention_forward) {
        const std::int64_t scores = product(op, "scores", before(op), true);
        end(op, {product(op, "values", {OpId(scores)}, false)});
      } else if (op.kind == OpKind::attention_backward) {
        const std::vector<OpId> start = before(op);
        const std::int64_t scores = product(op, "scores_gradient", start, true);
        end(op, {product(op, "value_gradient", start, false), product(op, "query_gradient", {OpId(scores)}, false),
                 product(op, "key_gradient", {OpId(scores)}, false)});
      } else {
        Operation same = op;
        same.after = before(op);
        if (is_projection(merged_, weights, op)) per_sequence(same);
        end(op, {add(std::move(same))});
      }
    }
    return std::move(published_);
  }

 private:
  // What an operation waits for, in the new graph.
  std::vector<OpId> before(const Operation& op) const {
    std::vector<OpId> all;
    for (const OpId old : op.after) {
      const std::vector<OpId>& ends = ends_[static_cast<std::size_t>(old.value)];
      all.insert(all.end(), ends.begin(), ends.end());
    }
    return all;
  }

  void end(const Operation& op, std::initializer_list<std::int64_t> last) {
    for (const std::int64_t id : last) ends_[static_cast<std::size_t>(op.id.value)].emplace_back(id);
  }

  std::int64_t add(Operation op) {
    op.id = OpId(std::ssize(published_.operations));
    published_.operations.push_back(std::move(op));
    return published_.operations.back().id.value;
  }

  // A product per sequence and head: [T x hd] [hd x T] with `square`, else [T x T] [T x hd].
  std::int64_t product(const Operation& attention, const std::string& what, std::vector<OpId> after, bool square) {
    const AttentionShape& shape = attention.attention;
    Operation op = attention;
    op.name += "." + what;
    op.type += "." + what;
    op.kind = OpKind::gemm;
    op.gemm = {shape.seq, square ? shape.seq : shape.head_dim, square ? shape.head_dim : shape.seq};
    op.instances = shape.batch * shape.n_head;
    op.after = std::move(after);
    return add(std::move(op));
  }

  // Rows of the batch are its sequences' rows; in a weight gradient they are what is summed over.
  void per_sequence(Operation& op) const {
    std::int64_t& rows = op.phase == model::Phase::weight_gradient ? op.gemm.k : op.gemm.m;
    CLEAVE_ASSERT(rows == merged_.batch * merged_.seq, "{} has {} rows", op.name, rows);
    rows = merged_.seq;
    op.instances = merged_.batch;
  }

  const StepGraph& merged_;
  StepGraph published_;
  std::vector<std::vector<OpId>> ends_;  // of an operation of the merged graph: those that end it
};

// Each instance whole on one device: T with  sum_i min(down_i T / in, up_i T / out, F_i T / flops) = instances.
double dealt_whole_s(const plan::Work& work, std::span<const plan::DeviceState> devices) {
  plan::Work one = work;
  one.instances = 1;
  const plan::Volume cost = plan::volume_of(one);
  double per_second = 0;
  for (const plan::DeviceState& device : devices) {
    per_second +=
        1.0 / std::max({(cost.down / device.profile.downlink).value(), (cost.up / device.profile.uplink).value(),
                        (cost.flops / device.profile.compute).value()});
  }
  return static_cast<double>(work.instances) / per_second;
}

}  // namespace

StepGraph publish(const StepGraph& merged) { return Rewriting(merged).run(); }

PublishedSums sum_operations(const StepGraph& published, std::span<const plan::DeviceState> devices,
                             const sched::SchedulerOptions& options) {
  std::vector<std::pair<plan::Work, PublishedSums>> known;
  PublishedSums sums;
  for (const Operation& op : published.operations) {
    if (!model::runs_on_devices(op.kind)) continue;
    const plan::Work work = plan::work_of(op, options.wire);
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == work; });
    if (found == known.end()) {
      const Seconds cut = plan::plan_operation(work, devices, options.plan).busy;
      known.push_back({work, {cut, work.instances > 1 ? Seconds(dealt_whole_s(work, devices)) : cut}});
      found = std::prev(known.end());
    }
    sums.cut += found->second.cut;
    sums.whole += found->second.whole;
  }
  return sums;
}

}  // namespace cleave::rivals
