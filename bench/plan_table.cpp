// Prints how close plans come to their lower bounds, over fleets, sizes and models (docs/measurements/planner.md).
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
#include <cstdio>
#include <ctime>

#include "plan_cases.hpp"

using namespace cleave;
using namespace cleave::plan_cases;

namespace {

plan::Partition partition_named(const std::string& name) {
  for (const auto& [partition, help] : plan::all_partitions()) {
    if (partition.name() == name) return partition;
  }
  fmt::print(stderr, "no partition {}\n", name);
  std::exit(2);
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
  std::vector<std::string> fleets = kFleets, models = kModels, sizes = kSizes;
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
