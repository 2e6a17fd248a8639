// cleave calibrate: what this host and its ranks can do, as a fragment of an input; and whether they can carry a study
// under the wall clock.
//
// Under the wall clock real time follows the model, so the host must really do a step's products, and move a step's
// bytes between ranks, within the step's modelled time. A study is refused where either takes more than half of it: the
// other half is for what the server does besides (its own kernels, packing, checks), and for what else runs on the
// host.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/config/quantity.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/rivals/registry.hpp"
#include "cli/failures.hpp"
#include "commands/commands.hpp"
#include "commands/host_speed.hpp"
#include "commands/session.hpp"
#include "input/input.hpp"
#include "input/run_setup.hpp"
#include "output/study.hpp"

namespace cleave::app {

namespace {

constexpr double kMostShare = 0.5;

struct Calibration {
  HostSpeed host;
  std::vector<RankLink> links;  ///< empty without mpirun
  int workers = 1;              ///< device ranks that can compute at the same time
  FlopsPerSecond devices;       ///< products of all device ranks together
  BytesPerSecond down, up;      ///< between the server and all ranks together: the slowest link's
  Seconds latency;
};

// Each device rank computes on one core; ranks of one host share its cores. Hosts are taken to be like the server's.
Calibration summarize(HostSpeed host, std::vector<RankLink> links) {
  Calibration c{
      .host = host, .links = std::move(links), .workers = 1, .devices = {}, .down = {}, .up = {}, .latency = {}};
  std::map<std::string, int> ranks_on;
  for (const RankLink& link : c.links) ++ranks_on[link.host];
  if (!c.links.empty()) c.workers = 0;
  for (const auto& [name, ranks] : ranks_on) c.workers += std::min(ranks, host.cores);
  const FlopsPerSecond each = host.all / static_cast<double>(host.cores);
  c.devices = c.workers == 1 ? host.core : each * static_cast<double>(c.workers);
  for (const RankLink& link : c.links) {
    c.down = c.down.value() == 0 ? link.down : std::min(c.down, link.down);
    c.up = c.up.value() == 0 ? link.up : std::min(c.up, link.up);
    c.latency = std::max(c.latency, link.latency);
  }
  return c;
}

// Three digits: more would feign a precision that the measurement does not have.
template <class T>
std::string text_of(T quantity) {
  return config::to_text(T(std::stod(fmt::format("{:.3g}", static_cast<double>(quantity.value())))));
}

std::string fragment(const Calibration& c) {
  std::string day(32, '\0');
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  day.resize(std::strftime(day.data(), day.size(), "%Y-%m-%d", &utc));
  std::string text = fmt::format(
      "# Measured by cleave calibrate on {}: {} cores, {} kernels; {} on one core, {} on all;\n", day, c.host.cores,
      kernels::name_of(kernels::selected_gemm_kernels()), text_of(c.host.core), text_of(c.host.all));
  text += fmt::format("# memory {} on one core, {} on all.\n", text_of(c.host.memory), text_of(c.host.memory_all));
  for (const RankLink& link : c.links) {
    text += fmt::format("# rank {} on {}: {} there, {} back, latency {}\n", link.rank, link.host, text_of(link.down),
                        text_of(link.up), text_of(link.latency));
  }
  if (c.links.empty()) text += "# Started without mpirun: links between ranks were not measured.\n";
  const std::string nic =
      c.links.empty() ? "" : fmt::format("nic_out: {}, nic_in: {}, ", text_of(c.down), text_of(c.up));
  text += fmt::format("server: {{{}compute: {}, memory_bandwidth: {}}}\n", nic, text_of(c.host.core),
                      text_of(c.host.memory));
  text += "fleet:\n  devices:\n";
  text += fmt::format(
      "    - {{name: core, count: {}, compute: {}, memory: 1 GiB, downlink: {}, uplink: {}, latency: {}}}\n", c.workers,
      text_of(c.devices / static_cast<double>(c.workers)), c.links.empty() ? "unlimited" : text_of(c.down),
      c.links.empty() ? "unlimited" : text_of(c.up), text_of(c.latency));
  return text;
}

struct Share {
  const char* what;
  std::string needed, had;
  double share;
};

// What a modelled second of the study takes of a real one here.
std::vector<Share> shares_of(const Calibration& c, const rivals::SystemReport& step, Flops flops) {
  const auto amount = [&](Bytes bytes) {
    return BytesPerSecond(static_cast<double>(bytes.value()) / step.step.value());
  };
  const FlopsPerSecond computed(flops.value() / step.step.value());
  std::vector<Share> shares{{"products", text_of(computed), text_of(c.devices), computed / c.devices}};
  if (!c.links.empty()) {
    shares.push_back(
        {"bytes to devices", text_of(amount(step.bytes_down)), text_of(c.down), amount(step.bytes_down) / c.down});
    shares.push_back(
        {"bytes from devices", text_of(amount(step.bytes_up)), text_of(c.up), amount(step.bytes_up) / c.up});
  }
  return shares;
}

void judge(const Calibration& c, const Input& input) {
  const rivals::SystemReport step = rivals::find_system("cleave")->simulate(study_of(input));
  if (!step.feasible) throw CheckFailure(fmt::format("the study is not possible on its fleet: {}", step.why));
  const model::StepGraph graph = model::build_step(input.step.model, sched::graph_options(input.step, 1));
  std::fprintf(stderr, "%s: a step takes %s in the model; under the wall clock this host would have to do\n",
               input.name.c_str(), show(step.step).c_str());
  const Share* worst = nullptr;
  const std::vector<Share> shares = shares_of(c, step, model::device_flops(graph));
  for (const Share& share : shares) {
    std::fprintf(stderr, "  %-18s %16s of %16s (%.1f %%)\n", share.what, share.needed.c_str(), share.had.c_str(),
                 100 * share.share);
    if (worst == nullptr || share.share > worst->share) worst = &share;
  }
  if (worst->share > kMostShare) {
    throw CheckFailure(
        fmt::format("this host cannot carry the study under the wall clock: {} need {} and it has {}, of "
                    "which half is the most; slow the fleet {:.1f} times, add hosts, or use fleet.clock=virtual",
                    worst->what, worst->needed, worst->had, worst->share / kMostShare));
  }
  std::fprintf(stderr, "this host can carry the study under the wall clock\n");
}

int calibrate_as_server(const CommandLine& line, Session& session, const std::optional<Input>& input) {
  const HostSpeed host = measure_host();
  const Calibration c =
      summarize(host, session.size() > 1 ? measure_links(session.devices()) : std::vector<RankLink>{});
  const std::string text = fragment(c);
  if (line.output.empty()) {
    std::fputs(text.c_str(), stdout);
  } else {
    replace_file(line.output, text);
  }
  if (input) judge(c, *input);
  return 0;
}

}  // namespace

int calibrate(const CommandLine& line, int argc, char** argv) {
  if (line.files.size() > 1)
    throw InputError("calibrate takes one input file at most", "cleave calibrate [INPUT.yaml]");
  std::optional<Input> input;
  if (!line.files.empty()) input = read_input(line.files.front(), line.overrides, Needs::no_data);
  Session session(argc, argv);
  int code = session.share_start_code(0, {.shared_memory = false});  // the rate of copies, not of none
  if (session.is_server()) {
    code = with_exit_code([&] { return calibrate_as_server(line, session, input); });
  } else {
    echo_until_told(session.devices(), session.host());
  }
  session.finish({}, code);
  return code;
}

}  // namespace cleave::app
