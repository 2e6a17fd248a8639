// Bytes, FLOP, memory and time of one tasklet; the formulas are derived in docs/cost_model.md.
#include "cleave/plan/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/base/resident.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"

namespace cleave::plan {

namespace {

std::int64_t chunk_end(std::int64_t total, std::int64_t panels, std::int64_t index) {
  return total * (index + 1) / panels;
}

}  // namespace

GemmCosts gemm_costs(const Work& work, const GemmBox& box) {
  const bool many_blocks = k_blocks(work.gemm.k) > 1;
  const bool whole_depth = box.k() == work.gemm.k;
  GemmCosts costs;
  costs.element_bytes = size_of(work.wire);
  costs.exponent_bytes = many_blocks ? kNormExponentBytes : 0;
  costs.strip_bytes = box.k() * costs.element_bytes + costs.exponent_bytes;
  costs.cell_bytes = many_blocks ? size_of(partial_sum_type(work.wire)) : costs.element_bytes;
  costs.result_bytes = whole_depth ? costs.element_bytes : size_of(partial_sum_type(work.wire));
  return costs;
}

std::int64_t k_panel_end(const GemmBox& box, std::int64_t panels, std::int64_t index) {
  if (index < 0) return box.k0;
  return std::min(box.k1, box.k0 + kBlockK * chunk_end(k_blocks(box.k()), panels, index));
}

Seconds kernel_time(const model::Operation& kernel, const fleet::ServerProfile& server) {
  return std::max(model::flops_of(kernel) / server.compute, model::traffic_of(kernel) / server.memory_bandwidth);
}

Volume volume_of(const Work& work, const TaskletPlan& piece) {
  if (work.kind == WorkKind::gemm) {
    const GemmCosts costs = gemm_costs(work, piece.box);
    const std::int64_t m = piece.box.m(), n = piece.box.n();
    const std::int64_t strips = m + (piece.columns_kept ? 0 : n);
    return {Bytes(work.instances * strips * costs.strip_bytes), Bytes(work.instances * m * n * costs.result_bytes),
            Flops(2.0 * static_cast<double>(work.instances * m * n) * static_cast<double>(piece.box.k()))};
  }
  const AttentionShape& shape = work.attention;
  const std::int64_t group = shape.queries_per_pair(), matrix = shape.seq * shape.head_dim * size_of(work.wire);
  const std::int64_t pairs = piece.pairs.count();
  const bool forward = work.kind == WorkKind::attention_forward;
  const Flops flops =
      model::head_flops(shape.head_dim, 0, shape.seq, forward ? model::kAttentionForward : model::kAttentionBackward) *
      static_cast<double>(pairs * group);
  if (forward) return {Bytes(pairs * (group + 2) * matrix), Bytes(pairs * group * matrix), flops};
  return {Bytes(pairs * (2 * group + 2) * matrix), Bytes(pairs * (group + 2) * matrix), flops};
}

Volume volume_of(const Work& work) { return volume_of(work, whole_of(work)); }

Bytes resident_bytes(const Work& work, const TaskletPlan& tasklet) {
  if (work.kind != WorkKind::gemm) {
    const AttentionShape& shape = work.attention;
    return attention_resident_bytes(tasklet.pairs.count(), shape.queries_per_pair(), shape.seq, shape.head_dim,
                                    work.wire, work.kind == WorkKind::attention_backward, tasklet.panels);
  }
  const GemmBox& box = tasklet.box;
  const bool many_blocks = k_blocks(work.gemm.k) > 1, whole_depth = box.k() == work.gemm.k;
  if (box.m() == 0) return kept_columns_bytes(box.n(), box.k(), work.wire, many_blocks);
  if (tasklet.columns_kept) {
    return gemm_resident_bytes_beside_columns({box.m(), box.n(), box.k()}, work.wire, many_blocks, whole_depth,
                                              tasklet.panels);
  }
  // One instance is computed while its neighbour travels.
  const std::int64_t in_flight = std::min<std::int64_t>(work.instances, 2);
  return in_flight * gemm_resident_bytes({box.m(), box.n(), box.k()}, work.wire, many_blocks, whole_depth,
                                         tasklet.order, tasklet.panels);
}

Seconds stream_time(std::span<const Panel> panels, const DeviceState& device, const fleet::ServerProfile& server) {
  const BytesPerSecond down_rate = std::min(device.profile.downlink, server.nic_out);
  const BytesPerSecond up_rate = std::min(device.profile.uplink, server.nic_in);
  Seconds down = device.down_busy, computed = device.compute_busy, up = device.up_busy;
  for (const Panel& panel : panels) {
    if (panel.down.value() > 0) down += panel.down / down_rate;
    computed = std::max(down + device.profile.latency, computed) + panel.flops / device.profile.compute;
    if (panel.up.value() > 0) up = std::max(computed, up) + panel.up / up_rate;
  }
  return up + device.profile.latency;
}

void estimate_cost(const Work& work, TaskletPlan& tasklet, const DeviceState& device, const PlanOptions& options) {
  const std::vector<Panel> panels = panels_of(work, tasklet);
  tasklet.device = device.profile.id;
  tasklet.bytes_down = tasklet.bytes_up = Bytes(0);
  for (const Panel& panel : panels) {
    tasklet.bytes_down += panel.down;
    tasklet.bytes_up += panel.up;
  }
  tasklet.resident = resident_bytes(work, tasklet);
  tasklet.time = stream_time(panels, device, options.server);
}

}  // namespace cleave::plan
