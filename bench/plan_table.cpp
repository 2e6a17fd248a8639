// Prints how close plans come to their lower bounds, over fleets, sizes and models: the table of docs/measurements.md.
//
//   plan_table [--devices 8,64,...] [--fleets mild,...] [--seed 42] [--models opt-13b,...] [--partition auto]
//   [--unlimited] [--objective alone|step] [--detail] [--compare grid]
//
// Prints markdown: a row per fleet and size, then a summary of 8 devices and of 64 and more. With --compare, how many
// times as long the weight-gradient GEMMs take under another partition. Each row sums up the GEMMs and attention
// operations of a training step at batch 128, sequence 1024 (a small GPT-2 at batch 8, sequence 64), every
// distinct operation once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <sstream>

#include "cleave/base/random.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/plan.hpp"

using namespace cleave;

namespace {

fleet::DeviceGroup group(std::string name, std::int64_t count, fleet::Range compute, fleet::Range down, fleet::Range up,
                         fleet::Range memory = {1e9, 3e9}, double latency = 0) {
  return {.name = std::move(name),
          .count = count,
          .compute_flops = {compute.low * 1e12, compute.high * 1e12},
          .memory_bytes = memory,
          .downlink_bytes = {down.low * 1e6, down.high * 1e6},
          .uplink_bytes = {up.low * 1e6, up.high * 1e6},
          .latency_s = {latency, latency}};
}

std::vector<fleet::DeviceGroup> fleet_groups(const std::string& name, std::int64_t n) {
  if (name == "cleave") return {group("edge", n, {5, 7}, {10, 100}, {5, 10})};
  if (name == "mild") return {group("edge", n, {5, 7}, {14, 100}, {5, 10})};
  if (name == "moderate") return {group("edge", n, {2, 10}, {5, 200}, {2, 20})};
  if (name == "extreme") return {group("edge", n, {1, 20}, {1, 500}, {1, 50})};
  if (name.starts_with("stragglers")) {
    const std::int64_t slow = std::llround(static_cast<double>(n) * std::stod(name.substr(10)) / 100);
    return {group("edge", n - slow, {5, 7}, {10, 100}, {5, 10}), group("straggler", slow, {.5, .7}, {1, 10}, {.5, 1})};
  }
  if (name == "phones") {
    const std::int64_t laptops = n / 4;
    return {group("phone", n - laptops, {0.7, 2.2}, {10, 100}, {5, 10}, {512 << 20, 512 << 20}, 0.01),
            group("laptop", laptops, {4, 4}, {37.5, 37.5}, {12.5, 12.5}, {4e9, 4e9}, 0.005)};
  }
  if (name == "symmetric") return {group("edge", n, {5, 7}, {10, 100}, {10, 100})};
  if (name == "identical") return {group("edge", n, {6, 6}, {12.5, 12.5}, {12.5, 12.5})};
  fmt::print(stderr, "no fleet {}\n", name);
  std::exit(2);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

struct Case {
  std::string model, name;
  plan::Work work;
};

std::vector<Case> cases_of(const std::string& name) {
  model::ModelConfig config;
  std::int64_t batch = 8;
  DType wire = DType::f32;
  if (name != "small") {
    config = model::find_preset(name).value();
    config.seq_len = 1024;
    batch = 128;
    wire = DType::f16;
  }
  model::StepOptions step;
  step.batch = batch;
  const model::StepGraph graph = model::build_step(config, step);
  std::vector<Case> cases;
  for (const model::Operation& op : graph.operations) {
    if (!model::runs_on_devices(op.kind)) continue;
    const plan::Work work = plan::work_of(op, wire);
    const auto same = [&](const Case& c) { return c.work == work; };
    if (std::none_of(cases.begin(), cases.end(), same)) cases.push_back({name, op.type, work});
  }
  return cases;
}

plan::Partition partition_named(const std::string& name) {
  for (const auto& [partition, help] : plan::all_partitions()) {
    if (partition.name() == name) return partition;
  }
  fmt::print(stderr, "no partition {}\n", name);
  std::exit(2);
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

std::vector<plan::DeviceState> fleet_of(const std::string& name, std::int64_t count, std::uint64_t seed) {
  std::vector<plan::DeviceState> devices;
  for (const fleet::DeviceProfile& profile : fleet::draw_devices(fleet_groups(name, count), seed)) {
    devices.push_back({profile, {}, {}, {}});
  }
  return devices;
}

// Of many plans.
struct Figures {
  std::vector<double> busy, time, cost;

  void add(const Figures& other) {
    busy.insert(busy.end(), other.busy.begin(), other.busy.end());
    time.insert(time.end(), other.time.begin(), other.time.end());
    cost.insert(cost.end(), other.cost.begin(), other.cost.end());
  }
  [[nodiscard]] std::string summary(const std::string& what) const {
    if (busy.empty()) return "";
    return fmt::format(
        "{}, {} plans: busy/bound median {:.3f} worst {:.3f} geometric mean {:.4f}; time/bound median {:.3f} worst "
        "{:.3f} "
        "geometric mean {:.4f}\n",
        what, busy.size(), percentile(busy, 0.5), percentile(busy, 1), geometric_mean(busy), percentile(time, 0.5),
        percentile(time, 1), geometric_mean(time));
  }
};

// How many times as long the weight-gradient GEMMs take under another partition.
int compare(const std::vector<Case>& cases, const std::vector<std::string>& fleets,
            const std::vector<std::string>& sizes, std::uint64_t seed, const plan::PlanOptions& options,
            const std::string& other) {
  plan::PlanOptions otherwise = options;
  otherwise.partition = partition_named(other);
  fmt::print(
      "| fleet | devices | GEMM | m x n x k | time s | {0} s | {0} / time | {0} / busy |\n"
      "|---|---:|---|---|---:|---:|---:|---:|\n",
      other);
  for (const std::string& fleet_name : fleets) {
    for (const std::string& size : sizes) {
      const std::vector<plan::DeviceState> devices = fleet_of(fleet_name, std::stoll(size), seed);
      for (const Case& c : cases) {
        if (!c.name.ends_with("weight_gradient")) continue;
        const plan::OperationPlan plan = plan::plan_operation(c.work, devices, options);
        const plan::OperationPlan rival = plan::plan_operation(c.work, devices, otherwise);
        fmt::print("| {} | {} | {} {} | {} x {} x {} | {:.3f} | {:.3f} | {:.2f} | {:.2f} |\n", fleet_name, size,
                   c.model, c.name, c.work.gemm.m, c.work.gemm.n, c.work.gemm.k, plan.time.value(), rival.time.value(),
                   rival.time / plan.time, rival.busy / plan.busy);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> fleets{"mild",         "moderate",     "extreme", "stragglers0", "stragglers5",
                                  "stragglers10", "stragglers20", "phones",  "symmetric"};
  std::vector<std::string> models{"opt-1.3b", "opt-13b", "opt-66b", "llama2-70b", "small"};
  std::vector<std::string> sizes{"8", "64", "256", "1024", "4096", "8192"};
  plan::PlanOptions options;
  options.objective = plan::Objective::alone;
  std::uint64_t seed = 42;
  bool detail = false;
  std::string other;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (flag == "--devices") {
      sizes = split(value());
    } else if (flag == "--fleets") {
      fleets = split(value());
    } else if (flag == "--models") {
      models = split(value());
    } else if (flag == "--seed") {
      seed = std::stoull(value());
    } else if (flag == "--unlimited") {
      options.server.nic_out = options.server.nic_in = fleet::kUnlimitedRate;
    } else if (flag == "--detail") {
      detail = true;
    } else if (flag == "--partition") {
      options.partition = partition_named(value());
    } else if (flag == "--objective") {
      options.objective = value() == "step" ? plan::Objective::step : plan::Objective::alone;
    } else if (flag == "--compare") {
      other = value();
    } else {
      fmt::print(stderr, "unknown option {}\n", flag);
      return 2;
    }
  }
  std::vector<Case> cases;
  for (const std::string& name : models) {
    for (Case& c : cases_of(name)) cases.push_back(std::move(c));
  }
  if (!other.empty()) return compare(cases, fleets, sizes, seed, options, other);
  fmt::print(
      "| fleet | devices | busy/bound median | worst | time/bound median | worst | plan ms median | worst | worst "
      "case |\n|---|---:|---:|---:|---:|---:|---:|---:|---|\n");
  Figures small, large;
  for (const std::string& fleet_name : fleets) {
    for (const std::string& size : sizes) {
      const std::vector<plan::DeviceState> devices = fleet_of(fleet_name, std::stoll(size), seed);
      Figures row;
      std::string worst;
      for (const Case& c : cases) {
        const std::clock_t start = std::clock();
        const plan::OperationPlan plan = plan::plan_operation(c.work, devices, options);
        row.cost.push_back(1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
        row.busy.push_back(plan.busy / plan.lower_bound);
        row.time.push_back(plan.time / plan.lower_bound);
        if (row.busy.back() >= percentile(row.busy, 1)) worst = c.model + " " + c.name;
        if (detail) {
          fmt::print(
              "  {:<10} {:<36} {:>6}x{:<6}x{:<6} bound {:8.3f} busy {:.3f} time {:.3f} {:<10} used {:>5} "
              "tasklets {:>5} {:6.1f} ms\n",
              c.model, c.name, c.work.gemm.m, c.work.gemm.n, c.work.gemm.k, plan.lower_bound.value(), row.busy.back(),
              row.time.back(), plan::name_of(plan.bottleneck), plan.devices_used, plan.tasklets.size(),
              row.cost.back());
        }
      }
      fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.1f} | {:.1f} | {} |\n", fleet_name, size,
                 percentile(row.busy, 0.5), percentile(row.busy, 1), percentile(row.time, 0.5), percentile(row.time, 1),
                 percentile(row.cost, 0.5), percentile(row.cost, 1), worst);
      std::fflush(stdout);
      (std::stoll(size) < 64 ? small : large).add(row);
    }
  }
  fmt::print("\n{}{}", small.summary("fewer than 64 devices"), large.summary("64 devices and more"));
}
