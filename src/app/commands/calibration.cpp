// Sums over hosts, and limits below which something is said.
#include "commands/calibration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace cleave::app {

namespace {

// What Gigabit Ethernet carries, less a fifth: below, the network is no cluster's, or the wrong interface is used.
constexpr BytesPerSecond kSlowLink{100e6};
// A host of a cluster answers within a tenth of this.
constexpr Seconds kFarAway{2e-3};
// Links and hosts of one run are expected to be alike; both directions of a link are expected not to share its rate.
constexpr double kAlike = 0.5, kFullDuplex = 0.6;

std::vector<Workers> workers_of(const RankSurvey& survey) {
  std::vector<Workers> all;
  for (const RunHost& host : survey.hosts) {
    const auto ranks = static_cast<int>(host.ranks.size() - std::ranges::count(host.ranks, 0));
    if (ranks == 0 && survey.hosts.size() > 1) continue;
    Workers some{.name = survey.hosts.size() > 1 ? "core of " + host.name : "core",
                 .count = std::max(1, std::min(ranks, host.speed.cores)),
                 .each = {},
                 .down = {},
                 .up = {},
                 .latency = {}};
    some.each = some.count == 1 ? host.speed.core : host.speed.all / static_cast<double>(host.speed.cores);
    for (const RankLink& link : survey.links) {
      if (link.host != host.name) continue;
      some.down = some.down ? std::min(*some.down, link.down) : link.down;
      some.up = some.up ? std::min(*some.up, link.up) : link.up;
      some.latency = std::max(some.latency, link.latency);
    }
    all.push_back(std::move(some));
  }
  return all;
}

// The last, and so the fastest, of the server's families that every host has.
std::string common_kernels(const std::vector<RunHost>& hosts) {
  std::string common;
  for (const std::string& family : hosts.front().supported) {
    const auto has = [&](const RunHost& host) { return std::ranges::count(host.supported, family) > 0; };
    if (std::ranges::all_of(hosts, has)) common = family;
  }
  return common;
}

void judge_hosts(const RankSurvey& survey, const std::string& kernels, std::vector<std::string>& warnings) {
  FlopsPerSecond fastest;
  for (const RunHost& host : survey.hosts) fastest = std::max(fastest, host.speed.core);
  for (const RunHost& host : survey.hosts) {
    if (std::ranges::count(host.supported, kernels) == 0) {
      warnings.push_back(
          fmt::format("host {} ({}) cannot run {} kernels: a run would go on without its ranks ({}); "
                      "server.gemm_kernels={} is what all hosts can run",
                      host.name, host.processor, kernels, fmt::join(host.ranks, " "), common_kernels(survey.hosts)));
    } else if (host.speed.core < fastest * kAlike) {
      warnings.push_back(fmt::format("host {} ({}) does {} on a core, another one {}", host.name, host.processor,
                                     text_of(host.speed.core), text_of(fastest)));
    }
  }
}

void judge_links(const RankSurvey& survey, std::vector<std::string>& warnings) {
  const std::string& here = survey.hosts.front().name;
  BytesPerSecond fastest;
  for (const RankLink& link : survey.links) {
    if (link.host != here) fastest = std::max(fastest, std::min(link.down, link.up));
  }
  for (const RankLink& link : survey.links) {
    if (link.host == here) continue;
    const std::string who = fmt::format("the link to rank {} on {}", link.rank, link.host);
    const BytesPerSecond slower = std::min(link.down, link.up);
    const std::string rates = fmt::format("{} there and {} back", text_of(link.down), text_of(link.up));
    if (slower < kSlowLink) {
      warnings.push_back(fmt::format("{} carries {}, less than Gigabit Ethernet does", who, rates));
    } else if (slower < fastest * kAlike) {
      warnings.push_back(fmt::format("{} carries {}, another one {}", who, rates, text_of(fastest)));
    }
    if (link.both < slower * kFullDuplex) {
      warnings.push_back(
          fmt::format("{} carries {} each way when both are in use, and {}", who, text_of(link.both), rates));
    }
    if (link.latency > kFarAway) {
      warnings.push_back(
          fmt::format("{} takes {} one way: every small operation of a step waits for it", who, text_of(link.latency)));
    }
  }
}

void judge_memory(const Calibration& c, std::vector<std::string>& warnings) {
  for (const RankLink& link : c.survey.links) {
    if (link.host != c.survey.hosts.front().name || c.shares(link.rank)) continue;
    warnings.push_back(
        fmt::format("rank {} is on the server's host and shares no memory with it: its messages are copied "
                    "(fleet.shared_memory is off, or the rank is in a container of its own)",
                    link.rank));
  }
}

}  // namespace

bool Calibration::shares(int rank) const { return std::ranges::count(sharing, rank) > 0; }

Calibration summarize(RankSurvey survey, const std::string& kernels, std::vector<int> sharing) {
  Calibration c{.survey = std::move(survey),
                .sharing = std::move(sharing),
                .workers = {},
                .devices = {},
                .down = {},
                .up = {},
                .latency = {},
                .warnings = {}};
  c.workers = workers_of(c.survey);
  for (const Workers& some : c.workers) c.devices += some.each * static_cast<double>(some.count);
  for (const RankLink& link : c.survey.links) {
    c.down = c.down.value() == 0 ? link.down : std::min(c.down, link.down);
    c.up = c.up.value() == 0 ? link.up : std::min(c.up, link.up);
    c.latency = std::max(c.latency, link.latency);
  }
  judge_hosts(c.survey, kernels, c.warnings);
  judge_links(c.survey, c.warnings);
  judge_memory(c, c.warnings);
  return c;
}

}  // namespace cleave::app
