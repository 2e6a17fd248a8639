// cleave calibrate: what the hosts of a run and the ways between them can do, as a fragment of an input, with a warning
// of what will be slow or will not work; and whether they can carry a study under the wall clock.
//
// Under the wall clock real time follows the model, so the hosts must really do a step's products, and move a step's
// bytes between ranks, within the step's modelled time. A study is refused where either takes more than half of it: the
// other half is for what the server does besides (its own kernels, packing, checks), and for what else runs on the
// hosts.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/rivals/registry.hpp"
#include "cli/failures.hpp"
#include "cli/result_file.hpp"
#include "commands/calibration.hpp"
#include "commands/commands.hpp"
#include "commands/session.hpp"
#include "input/input.hpp"
#include "input/run_setup.hpp"
#include "output/study.hpp"

namespace cleave::app {

namespace {

constexpr double kMostShare = 0.5;

std::string fragment(const Calibration& c) {
  std::string day(32, '\0');
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  day.resize(std::strftime(day.data(), day.size(), "%Y-%m-%d", &utc));
  const RunHost& server = c.survey.hosts.front();
  std::string text =
      fmt::format("# Measured by cleave calibrate on {}: {} cores, {} kernels; {} on one core, {} on all;\n", day,
                  server.speed.cores, server.kernels, text_of(server.speed.core), text_of(server.speed.all));
  text += fmt::format("# memory {} on one core, {} on all.\n", text_of(server.speed.memory),
                      text_of(server.speed.memory_all));
  for (const RunHost& host : c.survey.hosts) {
    text += fmt::format("# host {}: {}, {} cores, {} kernels; {} on one core, {} on all; ranks {}\n", host.name,
                        host.processor, host.speed.cores, host.kernels, text_of(host.speed.core),
                        text_of(host.speed.all), fmt::join(host.ranks, " "));
  }
  for (const RankLink& link : c.survey.links) {
    text += fmt::format("# rank {} on {}: {} there, {} back, latency {}; {} each way at once{}\n", link.rank, link.host,
                        text_of(link.down), text_of(link.up), text_of(link.latency), text_of(link.both),
                        c.shares(link.rank) ? "; shares memory with the server" : "");
  }
  if (c.survey.links.empty()) text += "# Started without mpirun: links between ranks were not measured.\n";
  for (const std::string& warning : c.warnings) text += fmt::format("# warning: {}\n", warning);
  const std::string nic =
      c.survey.links.empty() ? "" : fmt::format("nic_out: {}, nic_in: {}, ", text_of(c.down), text_of(c.up));
  text += fmt::format("server: {{{}compute: {}, memory_bandwidth: {}}}\n", nic, text_of(server.speed.core),
                      text_of(server.speed.memory));
  text += "fleet:\n  devices:\n";
  for (const Workers& some : c.workers) {
    text += fmt::format(
        "    - {{name: \"{}\", count: {}, compute: {}, memory: 1 GiB, downlink: {}, uplink: {}, latency: {}}}\n",
        some.name, some.count, text_of(some.each), some.down ? text_of(*some.down) : "unlimited",
        some.up ? text_of(*some.up) : "unlimited", text_of(some.latency));
  }
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
  if (!c.survey.links.empty()) {
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
  std::fprintf(stderr, "%s: a step takes %s in the model; under the wall clock these hosts would have to do\n",
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
        fmt::format("the hosts cannot carry the study under the wall clock: {} need {} and there are {}, of "
                    "which half is the most; slow the fleet {:.1f} times, add hosts, or use fleet.clock=virtual",
                    worst->what, worst->needed, worst->had, worst->share / kMostShare));
  }
  std::fprintf(stderr, "these hosts can carry the study under the wall clock\n");
}

Calibration measure_as_server(const CommandLine& line, Session& session, const std::optional<Input>& input,
                              const std::vector<int>& sharing) {
  RunHost own = describe_this_host(session.host());
  const bool chosen = input && input->server.gemm_kernels != "auto";
  const std::string kernels = chosen ? input->server.gemm_kernels : own.kernels;
  RankSurvey survey;
  if (session.size() > 1) {
    survey = survey_ranks(session.devices(), std::move(own));
  } else {
    own.ranks = {0};
    own.speed = measure_host();
    survey.hosts.push_back(std::move(own));
  }
  Calibration c = summarize(std::move(survey), kernels, sharing);
  for (const std::string& warning : c.warnings) std::fprintf(stderr, "cleave: warning: %s\n", warning.c_str());
  write_result(line.output.empty() ? "-" : line.output, fragment(c));
  return c;
}

// Ranks that read large messages where the server wrote them.
std::vector<int> ranks_that_share(Session& session) {
  std::vector<int> sharing;
  for (int rank = 1; rank < session.size(); ++rank) {
    if (session.devices().shares_memory(rank)) sharing.push_back(rank);
  }
  return sharing;
}

}  // namespace

int calibrate(const CommandLine& line, int argc, char** argv) {
  std::optional<Input> input;
  if (!line.files.empty()) {
    input = read_input(only_input(line), line.overrides, Needs::no_data);
    refuse_result_over(*input, line.output);
  } else if (!line.overrides.empty()) {
    throw InputError(fmt::format("{} changes nothing without an input", line.overrides.front()),
                     "cleave calibrate INPUT KEY=VALUE...");
  }
  Session session(argc, argv);
  comm::MpiTransportOptions transport;
  int code = 0;
  if (session.is_server()) {
    code = with_exit_code([&] {
      need_folder_of_result(line.output);
      if (input) transport = transport_options(*input);
      return 0;
    });
  }
  code = session.share_start_code(code, transport);
  if (code != 0) return code;
  const std::vector<int> sharing = session.is_server() ? ranks_that_share(session) : std::vector<int>();
  transport.shared_memory = false;  // the rate of copies, not of none
  code = session.share_start_code(0, transport);
  std::optional<Calibration> measured;
  if (session.is_server()) {
    code = with_exit_code([&] {
      measured = measure_as_server(line, session, input, sharing);
      return 0;
    });
  } else {
    answer_until_told(session.devices(), session.host());
  }
  // A large study takes its time to simulate, and the other ranks have nothing to do in it.
  const bool judges = measured && input;
  session.finish({}, code, judges ? Session::AfterMpi::goes_on : Session::AfterMpi::ends);
  if (!judges) return code;
  return with_exit_code([&] {
    judge(*measured, *input);
    return 0;
  });
}

}  // namespace cleave::app
