// Bytes, FLOP, memory and time of one tasklet; the formulas are derived in docs/cost_model.md.
#include "cleave/plan/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/base/resident.hpp"
#include "gemm_costs.hpp"

namespace cleave::plan {

namespace {

std::int64_t chunk_end(std::int64_t total, std::int64_t panels, std::int64_t index) {
  return total * (index + 1) / panels;
}
std::int64_t chunk(std::int64_t total, std::int64_t panels, std::int64_t index) {
  return total * (index + 1) / panels - total * index / panels;
}

// chunk() of one index after the other, without a division for each.
class Chunks {
 public:
  Chunks(std::int64_t total, std::int64_t panels) : least_(total / panels), over_(total % panels), panels_(panels) {}
  std::int64_t next() {
    rest_ += over_;
    const std::int64_t more = rest_ >= panels_ ? 1 : 0;
    rest_ -= more * panels_;
    return least_ + more;
  }

 private:
  std::int64_t least_, over_, panels_, rest_ = 0;
};

Bytes message(std::int64_t payload) { return payload > 0 ? Bytes(payload) + kMessageHeader : Bytes(0); }

void attention_panels(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels) {
  for (std::int64_t i = 0; i < tasklet.panels; ++i) {
    TaskletPlan part = tasklet;
    part.pairs = {0, chunk(tasklet.pairs.count(), tasklet.panels, i)};
    const Volume volume = volume_of(work, part);
    panels.push_back({message(volume.down.value()), volume.flops, message(volume.up.value())});
  }
}

// Runs of whole instances.
void instance_panels(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels) {
  const Volume all = volume_of(work, tasklet);
  for (std::int64_t i = 0; i < tasklet.panels; ++i) {
    const std::int64_t run = chunk(work.instances, tasklet.panels, i);
    panels.push_back({message(all.down.value() / work.instances * run),
                      all.flops * (static_cast<double>(run) / static_cast<double>(work.instances)),
                      message(all.up.value() / work.instances * run)});
  }
}

void gemm_panels(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels) {
  if (work.instances > 1) return instance_panels(work, tasklet, panels);
  const GemmCosts costs = gemm_costs(work, tasklet.box);
  const std::int64_t m = tasklet.box.m(), n = tasklet.box.n(), k = tasklet.box.k(), count = tasklet.panels;
  const auto flops_to = [](std::int64_t area, std::int64_t depth) {
    return Flops(2.0 * static_cast<double>(area) * static_cast<double>(depth));
  };
  const auto flops = [&](std::int64_t area) { return flops_to(area, k); };
  if (m == 0) {
    Chunks columns(n, count);
    for (std::int64_t i = 0; i < count; ++i)
      panels.push_back({message(columns.next() * costs.strip_bytes), Flops(0), Bytes(0)});
    return;
  }
  if (tasklet.columns_kept) {
    Chunks more_rows(m, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rows = more_rows.next();
      panels.push_back({message(rows * costs.strip_bytes), flops(rows * n), message(rows * n * costs.result_bytes)});
    }
    return;
  }
  switch (tasklet.order) {
    case PanelOrder::whole:
      for (std::int64_t i = 0; i < count; ++i) {
        panels.push_back({message((m + n) * costs.strip_bytes), flops(m * n), message(m * n * costs.result_bytes)});
      }
      return;
    case PanelOrder::wavefront: {
      // Rows and columns here so far complete a square from the corner; each panel adds its rim.
      std::int64_t rows = 0, columns = 0, area = 0;
      Chunks more_rows(m, count), more_columns(n, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t strips = rows + columns, square = area;
        rows += more_rows.next();
        columns += more_columns.next();
        area = rows * columns;
        panels.push_back({message((rows + columns - strips) * costs.strip_bytes), flops(area - square),
                          message((area - square) * costs.result_bytes)});
      }
      return;
    }
    case PanelOrder::row_resident: {
      const std::int64_t shorter = std::min(m, n);
      Chunks strips(std::max(m, n), count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t streamed = strips.next();
        panels.push_back({message((streamed + (i == 0 ? shorter : 0)) * costs.strip_bytes), flops(streamed * shorter),
                          message(streamed * shorter * costs.result_bytes)});
      }
      return;
    }
    case PanelOrder::result_resident: {
      const std::int64_t down = result_resident_down(count), first_up = down - 1;
      Chunks operands((m + n) * costs.strip_bytes, down), blocks(k_blocks(k), down), results(m * n, count - first_up);
      std::int64_t reached = 0;
      for (std::int64_t i = 0; i < down; ++i) {
        // A K block is multiplied when all of it is there.
        const std::int64_t before = std::min(k, kBlockK * reached);
        reached += blocks.next();
        panels.push_back({message(operands.next()), flops_to(m * n, std::min(k, kBlockK * reached) - before),
                          message(i == first_up ? results.next() * costs.result_bytes : 0)});
      }
      for (std::int64_t i = down; i < count; ++i)
        panels.push_back({Bytes(0), Flops(0), message(results.next() * costs.result_bytes)});
      return;
    }
  }
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
  const double scores = static_cast<double>(shape.seq) * static_cast<double>(shape.seq + 1) / 2;
  const double forward = static_cast<double>(pairs * group) * 2.0 * 2.0 * static_cast<double>(shape.head_dim) * scores;
  if (work.kind == WorkKind::attention_forward) {
    return {Bytes(pairs * (group + 2) * matrix), Bytes(pairs * group * matrix), Flops(forward)};
  }
  return {Bytes(pairs * (2 * group + 2) * matrix), Bytes(pairs * (group + 2) * matrix), Flops(forward * 2.5)};
}

std::vector<Panel> panels_of(const Work& work, const TaskletPlan& tasklet) {
  std::vector<Panel> panels;
  panels_of(work, tasklet, panels);
  return panels;
}

void panels_of(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels) {
  CLEAVE_ASSERT(tasklet.panels >= 1, "{} panels", tasklet.panels);
  panels.clear();
  panels.reserve(static_cast<std::size_t>(tasklet.panels));
  if (work.kind == WorkKind::gemm) {
    gemm_panels(work, tasklet, panels);
  } else {
    attention_panels(work, tasklet, panels);
  }
}

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

std::vector<Tail> tails_of(std::span<const Panel> panels, const fleet::DeviceProfile& device) {
  std::vector<Tail> tails;
  tails_of(panels, device, tails);
  return tails;
}

void tails_of(std::span<const Panel> panels, const fleet::DeviceProfile& device, std::vector<Tail>& tails) {
  tails.resize(panels.size());
  Tail next;
  for (std::size_t i = panels.size(); i-- > 0;) {
    const Panel& panel = panels[i];
    next.up += panel.up / device.uplink;
    const Seconds back = 2 * device.latency + panel.flops / device.compute + next.up;
    next.down = panel.down / device.downlink + std::max(next.down, back);
    tails[i] = next;
  }
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
