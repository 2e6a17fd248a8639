// summa: every product on a grid of devices, in two, 2.5 or three dimensions (Colossal-AI's tensor parallelism).
//
// State and activations lie in equal blocks on a grid of p devices. For C[m x n] = A[m x k] B[k x n], w bytes an
// element, each device sends and receives
//   2 D    p = q^2      w (m k + k n) / q  (q - 1) / q           panels of A along rows, of B along columns, q steps
//   2.5 D  p = c q^2    the same / c, and w m n / q^2 (c - 1) / c to add the c partial results; B is there c times
//   3 D    p = q^3      w (m k + k n + m n) / q^2  (q - 1) / q   gather A, gather B, scatter C, one step each
// under the product, which the slowest device computes in 2 m n k / p / rate. Attention stays local: heads and
// sequences are dealt over the grid. Data parallelism over grids. Sources: van de Geijn & Watts 1997, Solomonik &
// Demmel 2011, Agarwal et al. 1995; Bian et al. 2021 (Colossal-AI).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "cleave/base/show.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "pipeline.hpp"
#include "replica_grid.hpp"
#include "summa.hpp"

namespace cleave::rivals {

namespace {

// A product of one sequence's step; an extent that counts tokens is negative.
struct Product {
  GridProduct sizes;
  double count = 1;  ///< in a step
};

// With the tokens of so many sequences.
GridProduct of_sequences(const Product& product, double sequences) {
  GridProduct sizes = product.sizes;
  if (sizes.m < 0) sizes.m *= -sequences;
  if (sizes.k < 0) sizes.k *= -sequences;
  return sizes;
}

class SummaGrid final : public ReplicaGrid {
 public:
  SummaGrid(const StudyInput& study, const Workload& model, const std::vector<Product>& products, double other_flops,
            Grid grid, GridShape shape)
      : ReplicaGrid(study, model, std::move(grid)), products_(products), other_flops_(other_flops), shape_(shape) {}

  static double memory_of(const Workload& w, const GridShape& shape, std::int64_t sequences) {
    const std::size_t units = w.units.size();
    const auto devices = static_cast<double>(shape.devices());
    const auto copies = static_cast<double>(shape.cube ? 1 : shape.depth);
    const double kept = w.input_bytes(0, units) + w.largest_kept_bytes(0, units);  // layers computed again
    return static_cast<double>(w.total_parameters() * Workload::kStateBytes) / devices * copies +
           static_cast<double>(sequences) * kept / devices;
  }

 private:
  [[nodiscard]] double slowest(const std::vector<std::size_t>& replica) const {
    double rate = std::numeric_limits<double>::infinity();
    for (const std::size_t d : replica) rate = std::min(rate, network().device(d).compute.value());
    return rate;
  }

  [[nodiscard]] std::vector<std::int64_t> shares_of(const Grid& grid) const override {
    std::vector<double> rates;
    for (const std::vector<std::size_t>& replica : grid) rates.push_back(slowest(replica));
    std::vector<std::int64_t> shares = apportion(workload().batch, rates);
    // What a replica has no room for goes to the one that is done with it first.
    std::vector<std::int64_t> room;
    for (const std::vector<std::size_t>& replica : grid) room.push_back(room_of(replica));
    for (std::size_t r = 0; r < grid.size(); ++r) {
      while (shares[r] > room[r]) {
        std::size_t first = grid.size();
        const auto done_s = [&](std::size_t i) { return static_cast<double>(shares[i] + 1) / rates[i]; };
        for (std::size_t i = 0; i < grid.size(); ++i) {
          if (shares[i] < room[i] && (first == grid.size() || done_s(i) < done_s(first))) first = i;
        }
        if (first == grid.size()) return shares;  // after losses: what is left has room for less than the batch
        --shares[r];
        ++shares[first];
      }
    }
    return shares;
  }

  // Sequences that every device of a replica has memory for.
  [[nodiscard]] std::int64_t room_of(const std::vector<std::size_t>& replica) const {
    double have = std::numeric_limits<double>::infinity();
    for (const std::size_t d : replica) have = std::min(have, static_cast<double>(network().device(d).memory.value()));
    const double none = memory_of(workload(), shape_, 0), one = memory_of(workload(), shape_, 1) - none;
    return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(std::max(0.0, have - none) / one)));
  }

  [[nodiscard]] StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const override {
    StepCost cost;
    cost.usage.resize(network().size());
    const auto p = static_cast<double>(shape_.devices());
    const auto element = static_cast<double>(workload().element);
    const auto header = static_cast<double>(plan::kMessageHeader.value());
    double products_s = 0, flops = 0, update_s = 0;
    const double parameters = static_cast<double>(workload().total_parameters()) / p;
    Grid working;
    for (std::size_t r = 0; r < grid.size(); ++r) {
      if (shares[r] == 0) continue;
      working.push_back(grid[r]);
      const auto sequences = static_cast<double>(shares[r]);
      const double rate = slowest(grid[r]), link = network().slowest_rate(grid[r], grid[r]);
      const double latency_s = network().longest_latency_s(grid[r], grid[r]);
      double time_s = sequences * other_flops_ / p / rate, bytes = 0;
      flops = sequences * other_flops_ / p;
      for (const Product& product : products_) {
        const GridProduct whole = of_sequences(product, sequences);
        const GridTraffic moved = traffic_of(whole, shape_, element);
        const double own = 2 * whole.m * whole.n * whole.k / p;
        const double carried_s =
            shape_.devices() > 1 ? (moved.bytes + moved.messages * header) / link + moved.messages * latency_s : 0;
        time_s += product.count * std::max(own / rate, carried_s);
        flops += product.count * own;
        bytes += product.count * (moved.bytes + moved.messages * header);
      }
      products_s = std::max(products_s, time_s);
      for (const std::size_t d : grid[r]) {
        sched::Usage& used = cost.usage[d];
        const fleet::DeviceProfile& device = network().device(d);
        const double own_update_s = Workload::kUpdateFlops * parameters / device.compute.value();
        used.compute += Seconds(flops / device.compute.value() + own_update_s);
        used.bytes_up += Bytes(std::llround(bytes));
        used.bytes_down += Bytes(std::llround(bytes));
        const double measured = network().measured() ? link : 0;
        used.up += Seconds(bytes / (measured > 0 ? measured : device.uplink.value()));
        used.down += Seconds(bytes / (measured > 0 ? measured : device.downlink.value()));
        used.memory_peak = Bytes(std::llround(memory_of(workload(), shape_, shares[r])));
        update_s = std::max(update_s, own_update_s);
      }
    }
    double exchange_s = 0;
    for (std::size_t position = 0; position < shape_.devices(); ++position) {
      std::vector<std::size_t> members;
      for (const std::vector<std::size_t>& replica : working) members.push_back(replica[position]);
      const CollectiveCost exchange = ring_all_reduce(network(), members, parameters * element);
      exchange_s = std::max(exchange_s, exchange.time_s);
      charge(exchange, members, cost.usage);
    }
    cost.time_s = products_s + exchange_s + update_s;
    return cost;
  }

  std::vector<Product> products_;
  double other_flops_;  // of a sequence: attention and element-wise work
  GridShape shape_;
};

// The products of one sequence's step. Forward passes of layers run again.
std::vector<Product> products_of(const StudyInput& study, const Workload& workload, double& other_flops) {
  model::ModelConfig single = study.model;
  single.n_layer = 1;
  const model::StepGraph graph = model::build_step(
      single, {.kind = model::StepKind::train, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0});
  const std::int64_t tokens = graph.batch * graph.seq;
  std::vector<Product> products;
  double gemm_flops = 0;
  for (const model::Operation& op : graph.operations) {
    if (op.kind != model::OpKind::gemm) continue;
    const bool layer = op.name != op.type;
    const bool again = layer && op.phase == model::Phase::forward;
    Product product{{static_cast<double>(op.gemm.m), static_cast<double>(op.gemm.n), static_cast<double>(op.gemm.k)},
                    (layer ? static_cast<double>(study.model.n_layer) : 1.0) * (again ? 2 : 1)};
    gemm_flops += product.count * 2 * product.sizes.m * product.sizes.n * product.sizes.k;
    if (op.phase == model::Phase::weight_gradient) {
      product.sizes.k = -product.sizes.k;
    } else if (op.gemm.m == tokens) {
      product.sizes.m = -product.sizes.m;
    }
    products.push_back(product);
  }
  const std::size_t units = workload.units.size();
  const double all =
      workload.forward_flops(0, units) + workload.forward_flops(1, units - 1) + workload.backward_flops(0, units);
  other_flops = std::max(0.0, all - gemm_flops);
  return products;
}

class Summa final : public PlacedSystem {
 public:
  [[nodiscard]] std::string name() const override { return "summa"; }
  [[nodiscard]] std::string summary() const override {
    return "every product on a grid of devices in 2, 2.5 or 3 dimensions (Colossal-AI)";
  }

 private:
  [[nodiscard]] std::vector<PlacedLayout> find_layouts(const StudyInput& study, SystemReport& report) const override {
    const Workload workload = describe_workload(study.model, study.batch, study.wire);
    double other_flops = 0;
    const std::vector<Product> products = products_of(study, workload, other_flops);
    const std::vector<std::size_t> order = by_link(study);
    Grid best;
    GridShape best_shape;
    double shortest_s = std::numeric_limits<double>::infinity(), least = shortest_s;
    for (const GridShape& shape : shapes(order.size())) {
      const std::size_t most = std::min(order.size() / shape.devices(), static_cast<std::size_t>(workload.batch));
      for (std::size_t replicas = most; replicas > 0; replicas = fewer(replicas)) {
        const std::int64_t share =
            (study.batch + static_cast<std::int64_t>(replicas) - 1) / static_cast<std::int64_t>(replicas);
        const double need = SummaGrid::memory_of(workload, shape, share);
        least = std::min(least, need);
        const std::vector<std::size_t> able = with_room(study, order, need);
        if (able.size() < replicas * shape.devices()) continue;
        Grid grid(replicas);
        for (std::size_t i = 0; i < replicas * shape.devices(); ++i) grid[i / shape.devices()].push_back(able[i]);
        for (Grid& tried : worth_trying(study, std::move(grid))) {
          if (static_cast<double>(study.devices[tried[0][0]].memory.value()) < need) continue;
          const double step_s = SummaGrid(study, workload, products, other_flops, tried, shape).step().time_s;
          if (step_s >= shortest_s) continue;
          shortest_s = step_s;
          best = std::move(tried);
          best_shape = shape;
        }
      }
    }
    if (best.empty()) {
      report.why = fmt::format(
          "a block of the model with gradients, moments and activations takes at least {}; "
          "too few devices have that",
          show_bytes(least));
      return {};
    }
    std::string layout = fmt::format("{} grids of {} devices", best.size(), best_shape.name());
    return one_layout(std::move(layout),
                      std::make_unique<SummaGrid>(study, workload, products, other_flops, std::move(best), best_shape));
  }

  static std::vector<GridShape> shapes(std::size_t devices) {
    std::vector<GridShape> all;
    for (std::size_t q = 1; q * q <= devices; ++q) {
      all.push_back({q, 1, false});
      for (std::size_t c = 2; c <= q && c * q * q <= devices; c *= 2) all.push_back({q, c, false});
      if (q > 1 && q * q * q <= devices) all.push_back({q, 1, true});
    }
    return all;
  }
};

}  // namespace

std::string GridShape::name() const {
  if (cube) return fmt::format("{} x {} x {}", side, side, side);
  return depth > 1 ? fmt::format("{} x {} x {} (2.5 D)", side, side, depth) : fmt::format("{} x {}", side, side);
}

GridTraffic traffic_of(const GridProduct& p, const GridShape& shape, double element) {
  const auto q = static_cast<double>(shape.side), c = static_cast<double>(shape.depth);
  const double rest = (q - 1) / q;
  if (shape.cube) return {element * (p.m * p.k + p.k * p.n + p.m * p.n) / (q * q) * rest, q > 1 ? 3.0 : 0.0};
  const double panels = element * (p.m * p.k + p.k * p.n) / q * rest / c;
  const double partial = element * p.m * p.n / (q * q) * (c - 1) / c;
  return {panels + partial, (q > 1 ? 2 * std::ceil(q / c) : 0) + (c > 1 ? 1 : 0)};
}

std::unique_ptr<System> make_summa() { return std::make_unique<Summa>(); }

}  // namespace cleave::rivals
