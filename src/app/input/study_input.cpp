// Declarations of the keys for comparisons.
#include "input/study_input.hpp"
#include "input/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace cleave::app {

namespace {

/// A matrix of links grows with the square of the fleet; this many devices take 256 MB.
constexpr std::int64_t kMostLinkedDevices = 4096;

using DeviceRange = std::pair<std::int64_t, std::int64_t>;  // devices [first, second)

// Devices that an end of a link names: those of a group, of every group of that name, or one by its index.
std::vector<DeviceRange> devices_of(const std::string& end, const std::vector<fleet::DeviceGroup>& groups) {
  std::vector<DeviceRange> runs;
  std::int64_t first = 0;
  for (const fleet::DeviceGroup& group : groups) {
    if (group.name == end) runs.emplace_back(first, first + group.count);
    first += group.count;
  }
  if (!runs.empty()) return runs;
  std::int64_t index = -1;
  const auto [stop, error] = std::from_chars(end.data(), end.data() + end.size(), index);
  if (error == std::errc() && stop == end.data() + end.size() && index >= 0 && index < first) {
    runs.emplace_back(index, index + 1);
  }
  return runs;
}

std::int64_t count_devices(const std::vector<fleet::DeviceGroup>& groups) {
  std::int64_t count = 0;
  for (const fleet::DeviceGroup& group : groups) count += group.count;
  return count;
}

rivals::DtfmOptions read_dtfm(const config::Section& in) {
  rivals::DtfmOptions dtfm;
  dtfm.population = in.integer(
      "population", {.default_value = dtfm.population, .min = 2, .max = 100'000, .help = "Partitions kept at a time."});
  dtfm.trials = in.integer("trials", {.default_value = dtfm.trials,
                                      .min = 0,
                                      .max = 10'000'000,
                                      .help = "Offspring made; fewer where they would take minutes."});
  dtfm.stages = in.integer("stages", {.default_value = dtfm.stages,
                                      .min = 0,
                                      .help = "Pipeline stages; 0: whichever number makes the step shortest."});
  dtfm.gradient =
      in.bytes("gradient", {.default_value = dtfm.gradient,
                            .help = "What a device exchanges in its objective; 0 B: from the model and the stages."});
  dtfm.activation =
      in.bytes("activation", {.default_value = dtfm.activation,
                              .help = "What a hop carries in its objective; 0 B: from the model and the batch."});
  dtfm.seed = static_cast<std::uint64_t>(in.integer(
      "seed", {.default_value = static_cast<std::int64_t>(dtfm.seed), .min = 0, .help = "Seed of its search."}));
  dtfm.polish = in.boolean("polish", {.default_value = dtfm.polish,
                                      .help = "Improve its best partitions by swaps, beyond its authors' code."});
  return dtfm;
}

rivals::LocalStepOptions read_local_steps(const config::Section& in) {
  rivals::LocalStepOptions local_steps;
  local_steps.interval = in.integer("interval", {.default_value = local_steps.interval,
                                                 .min = 1,
                                                 .max = 1'000'000,
                                                 .help = "Steps from one average of the copies to the next."});
  return local_steps;
}

rivals::SwarmOptions read_swarm(const config::Section& in) {
  rivals::SwarmOptions swarm;
  swarm.boundary_bits = in.integer(
      "boundary_bits",
      {.default_value = swarm.boundary_bits,
       .min = 8,
       .max = 32,
       .help = "Bits of an element of a boundary tensor under way; 8: as published, 16: as the others send."});
  return swarm;
}

rivals::GpuOptions read_gpu(const config::Section& in) {
  rivals::GpuOptions gpu;
  gpu.count = in.integer("count", {.default_value = gpu.count, .min = 1, .max = 1'000'000, .help = "GPUs."});
  gpu.peak = in.compute(
      "peak", {.default_value = gpu.peak, .min = kSlowestProcessor, .help = "Peak of one GPU; an A100 in fp16."});
  gpu.utilisation =
      in.real("utilisation",
              {.default_value = gpu.utilisation, .max = 1.0, .above = 0.0, .help = "Model FLOP utilisation reached."});
  gpu.memory = in.bytes("memory", {.default_value = gpu.memory, .min = Bytes(1), .help = "Memory of one GPU."});
  gpu.host_memory = in.bytes("host_memory", {.default_value = gpu.host_memory,
                                             .help = "For the state that does not fit the GPUs; 0 B: none."});
  gpu.host_link =
      in.rate("host_link",
              {.default_value = gpu.host_link, .min = kSlowestLink, .help = "Between host and one GPU, each way."});
  gpu.power = in.watts("power", {.default_value = gpu.power, .help = "Power of one GPU during the step."});
  return gpu;
}

}  // namespace

std::vector<LinkInput> read_links(const config::Section& fleet, const std::vector<fleet::DeviceGroup>& groups) {
  std::vector<LinkInput> links;
  fleet.each(
      "links", {.help = "Measured links between pairs of devices, for systems whose devices talk to each other."},
      [&](const config::Section& in) {
        LinkInput link;
        for (const auto& [key, end] : {std::pair("from", &link.from), std::pair("to", &link.to)}) {
          *end = in.text(key, {.help = "A group's name, or a device's index."});
          if (in.sound(key) && !end->empty() && devices_of(*end, groups).empty())
            in.fault(key, fmt::format("no group and no device is called '{}'", *end),
                     "the name of a group of fleet.devices, or an index from 0");
        }
        link.link.latency = in.seconds(
            "latency",
            {.default_value = link.link.latency, .max = kLongestDelay, .help = "One way, once per message."});
        link.link.rate = in.rate("rate", {.min = kSlowestLink, .help = "Rate of the pair, each way."});
        link.one_way =
            in.boolean("one_way", {.default_value = link.one_way, .help = "Only from `from` to `to`; else both ways."});
        links.push_back(std::move(link));
      });
  if (!links.empty() && count_devices(groups) > kMostLinkedDevices)
    fleet.fault("links", fmt::format("links are for at most {} devices", kMostLinkedDevices));
  return links;
}

rivals::PeerLinks read_peer_links(const config::Section& fleet) {
  return fleet.choice<rivals::PeerLinks>(
      "peer_links",
      {{"direct", rivals::PeerLinks::direct},
       {"relayed", rivals::PeerLinks::relayed},
       {"none", rivals::PeerLinks::none}},
      {.default_value = rivals::PeerLinks::direct,
       .help = "How devices reach each other, for systems whose devices do: direct; relayed by the server, as behind "
               "NAT, through its interface; none: each reaches the server only."});
}

SimulateInput read_simulate(const config::Section& in) {
  SimulateInput s;
  s.steps = in.integer(
      "steps", {.default_value = s.steps,
                .min = 1,
                .max = 1'000'000,
                .help = "Steps one after another under fleet.churn. Step, recovery and energy are means over them, and "
                        "cleave's server kernels. Bytes, memory and what devices do are those of the first step, of a "
                        "rival those of a calm one."});
  const config::Section loss =
      in.section("loss", "Devices lost in mid-step; nobody is where `fleet.churn` has events.");
  s.loss.devices =
      loss.integer("devices", {.default_value = s.loss.devices, .min = 0, .help = "How many are lost at once."});
  s.loss.progress = loss.real(
      "progress",
      {.default_value = s.loss.progress, .min = 0.0, .max = 1.0, .help = "When, as a share of the undisturbed step."});
  s.loss.seed =
      static_cast<std::uint64_t>(loss.integer("seed", {.default_value = static_cast<std::int64_t>(s.loss.seed),
                                                       .min = 0,
                                                       .help = "Seed of the draw: which ones, among those in use."}));
  s.detection =
      in.seconds("detection", {.default_value = s.detection, .help = "From a loss until the others know of it."});
  s.dtfm = read_dtfm(in.section("dtfm", "DTFM's scheduler."));
  s.local_steps = read_local_steps(in.section("local_steps", "Copies that train alone between averages."));
  s.swarm = read_swarm(in.section("swarm", "What swarm sends."));
  s.gpu = read_gpu(in.section("gpu", "The GPUs of cloud-gpu."));
  return s;
}

fleet::LinkMatrix link_matrix(const std::vector<LinkInput>& links, const std::vector<fleet::DeviceGroup>& groups,
                              const std::vector<fleet::DeviceProfile>& devices) {
  if (links.empty()) return {};
  const auto n = static_cast<std::int64_t>(devices.size());
  fleet::LinkMatrix matrix(n, {});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const fleet::DeviceProfile &from = devices[static_cast<std::size_t>(i)],
                                 &to = devices[static_cast<std::size_t>(j)];
      matrix.set(DeviceId(i), DeviceId(j), {from.latency + to.latency, std::min(from.uplink, to.downlink)});
    }
  }
  for (const LinkInput& link : links) {
    for (const DeviceRange& from : devices_of(link.from, groups)) {
      for (const DeviceRange& to : devices_of(link.to, groups)) {
        for (std::int64_t i = from.first; i < from.second; ++i) {
          for (std::int64_t j = to.first; j < to.second; ++j) {
            matrix.set(DeviceId(i), DeviceId(j), link.link);
            if (!link.one_way) matrix.set(DeviceId(j), DeviceId(i), link.link);
          }
        }
      }
    }
  }
  return matrix;
}

}  // namespace cleave::app
