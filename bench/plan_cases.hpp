// The plans that plan_table and search_stages make: every distinct operation of a training step of some models, on
// fleets of several kinds; and how many of them are summed up.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cleave/model/family.hpp"
#include "cleave/plan/plan.hpp"

namespace cleave::plan_cases {

inline const std::vector<std::string> kFleets{"mild",         "moderate",     "extreme", "stragglers0", "stragglers5",
                                              "stragglers10", "stragglers20", "phones",  "symmetric"};
inline const std::vector<std::string> kModels{"opt-1.3b", "opt-13b", "opt-66b", "llama2-70b", "small"};
inline const std::vector<std::string> kSizes{"8", "64", "256", "1024", "4096", "8192"};

inline fleet::DeviceGroup group(std::string name, std::int64_t count, fleet::Range compute, fleet::Range down,
                                fleet::Range up, fleet::Range memory = {1e9, 3e9}, double latency = 0) {
  return {.name = std::move(name),
          .count = count,
          .compute_flops = {compute.low * 1e12, compute.high * 1e12},
          .memory_bytes = memory,
          .downlink_bytes = {down.low * 1e6, down.high * 1e6},
          .uplink_bytes = {up.low * 1e6, up.high * 1e6},
          .latency_s = {latency, latency}};
}

inline std::vector<fleet::DeviceGroup> fleet_groups(const std::string& name, std::int64_t n) {
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

/// What `--key value` arguments give in place of the defaults; ends the program with 2 where one is no such key, or has
/// no value.
inline std::map<std::string, std::string> given_options(int argc, char** argv,
                                                        std::map<std::string, std::string> given) {
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], key = option.starts_with("--") ? option.substr(2) : "";
    if (!given.contains(key) || i + 1 == argc) {
      fmt::print(stderr, "{}: {}\n", option, given.contains(key) ? "a value is missing" : "no such option");
      std::exit(2);
    }
    given[key] = argv[i + 1];
  }
  return given;
}

inline std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

struct Case {
  std::string model, name;
  plan::Work work;
};

inline std::vector<Case> cases_of(const std::string& name) {
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

inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

inline double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

inline std::vector<plan::DeviceState> fleet_of(const std::string& name, std::int64_t count, std::uint64_t seed) {
  std::vector<plan::DeviceState> devices;
  for (const fleet::DeviceProfile& profile : fleet::draw_devices(fleet_groups(name, count), seed)) {
    devices.push_back({profile, {}, {}, {}});
  }
  return devices;
}

}  // namespace cleave::plan_cases
