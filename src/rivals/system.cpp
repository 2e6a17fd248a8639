// What the systems have in common: the head of a report, who may speak to whom, what the server takes, and real time.
#include "cleave/rivals/system.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace cleave::rivals {

namespace {

// The study on one device, which keeps its own churn.
StudyInput alone_on(const StudyInput& study, std::size_t device) {
  StudyInput alone = study;
  const DeviceId id = study.devices[device].id;
  alone.devices = {study.devices[device]};
  alone.devices.front().id = DeviceId(0);
  alone.links = {};
  std::erase_if(alone.churn, [&](const fleet::ChurnEvent& event) { return event.device != id; });
  for (fleet::ChurnEvent& event : alone.churn) event.device = DeviceId(0);
  return alone;
}

// Rivals' messages are late by the mean of their jitter.
StudyInput with_mean_jitter(const StudyInput& study) {
  StudyInput on_average = study;
  for (fleet::DeviceProfile& device : on_average.devices) device = fleet::without_jitter(std::move(device));
  return on_average;
}

// Where nothing can be sent from device to device, a layout of one device is left: the fastest that is able.
void try_alone(const StudyInput& study, const std::function<void(const StudyInput&, SystemReport&)>& run,
               SystemReport& report) {
  std::vector<std::size_t> fastest_first(study.devices.size());
  std::iota(fastest_first.begin(), fastest_first.end(), std::size_t{0});
  std::ranges::stable_sort(fastest_first, std::ranges::greater{},
                           [&](std::size_t d) { return study.devices[d].compute.value(); });
  SystemReport tried = report;
  Bytes too_small{-1};
  std::size_t chosen = 0;
  for (const std::size_t d : fastest_first) {
    if (study.devices[d].memory <= too_small) continue;
    tried = report;
    chosen = d;
    run(alone_on(study, d), tried);
    if (tried.feasible) break;
    too_small = study.devices[d].memory;
  }
  const std::string missing = tried.why;
  report = std::move(tried);
  if (report.feasible) {  // the others idle
    for (const std::size_t d : fastest_first) {
      if (d != chosen) report.energy += study.devices[d].power_idle * report.step;
    }
    return;
  }
  report.why =
      fmt::format("its devices would have to speak to each other, which fleet.peer_links forbids; one alone: {}",
                  missing.empty() ? "there is no device" : missing);
}

// Every byte from device to device enters and leaves through the server's interface, which is taken for no less.
void relay(const fleet::ServerProfile& server, SystemReport& report) {
  report.server_in = report.bytes_up / server.nic_in;
  report.server_out = report.bytes_down / server.nic_out;
  const Seconds taken = std::max(report.server_in, report.server_out);
  report.lower_bound = std::max(report.lower_bound, taken);
  report.step = std::max(report.step, taken);
}

// Power at rest all the time, and what work adds while its interface or its processor is busy, as if both worked at
// once.
Joules server_energy(const fleet::ServerProfile& server, const SystemReport& report) {
  const Seconds busy = std::min(report.step, std::max({report.server_in, report.server_out, report.server_kernels}));
  return server.power_idle * report.step + (server.power_load - server.power_idle) * busy;
}

}  // namespace

SystemReport System::simulate(const StudyInput& study) const {
  const auto begun = std::chrono::steady_clock::now();
  const auto elapsed = [begun] {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  };
  SystemReport report;
  report.system = name();
  report.devices = static_cast<std::int64_t>(study.devices.size());
  const auto run = [&](const StudyInput& what, SystemReport& into) { carry_out(what, elapsed, into); };
  if (!uses_peer_links()) {
    run(study, report);
  } else if (const StudyInput on_average = with_mean_jitter(study); study.peer_links == PeerLinks::direct) {
    run(on_average, report);
  } else if (study.peer_links == PeerLinks::none) {
    try_alone(on_average, run, report);
    report.devices = static_cast<std::int64_t>(study.devices.size());
  } else {
    StudyInput relayed = on_average;
    relayed.links = {};  // measured between devices that reach each other
    run(relayed, report);
    if (report.feasible) relay(study.server(), report);
  }
  if (report.feasible) report.server_energy = server_energy(study.server(), report);
  report.wall = elapsed();
  return report;
}

}  // namespace cleave::rivals
