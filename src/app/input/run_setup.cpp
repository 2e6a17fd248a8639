// Devices, options and the memory check.
#include "input/run_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/scheduler.hpp"
#include "input/churn_trace.hpp"

namespace cleave::app {

namespace {

/// Emulated time for which churn is drawn: longer than any run is watched, and a bound for fleets that change very
/// fast.
constexpr Seconds kChurnHorizon{30.0 * 24 * 3600};
constexpr double kMostSessions = 20000;

Seconds churn_horizon(const fleet::ChurnModel& churn) {
  return std::min(kChurnHorizon, (churn.mean_session + churn.mean_absence) * kMostSessions);
}

server::Verification verification_of(const Input& input) {
  server::Verification v = input.verify;
  std::random_device secret;  // devices must not be able to foresee it; results do not depend on it
  v.seed = (static_cast<std::uint64_t>(secret()) << 32) | secret();
  return v;
}

}  // namespace

server::TrainerOptions trainer_options(const Input& input) {
  server::TrainerOptions options;
  options.model = input.model.config;
  options.train = input.train;
  options.plan = input.plan;
  options.row_groups = std::max<std::int64_t>(1, input.layout.row_groups);
  options.asynchronous = input.asynchronous;
  options.executor = {.wire = input.wire,
                      .threads = input.server.threads,
                      .verification = verification_of(input),
                      .profile = input.profile};
  options.devices = fleet::draw_devices(input.fleet.groups, input.fleet.seed);
  options.fleet.clock = input.fleet.clock;
  options.fleet.wire = input.wire;
  options.fleet.seed = input.fleet.seed;
  options.fleet.patience = input.fleet.patience;
  options.fleet.server = input.server.profile;
  if (input.fleet.churns) {
    options.fleet.churn = input.fleet.trace.empty()
                              ? fleet::draw_churn(input.fleet.churn, static_cast<std::int64_t>(options.devices.size()),
                                                  churn_horizon(input.fleet.churn))
                              : read_churn_trace(input.fleet.trace, static_cast<std::int64_t>(options.devices.size()));
  }
  if (input.server.gemm_kernels == "auto") {
    options.fleet.gemm_kernels = kernels::name_of(kernels::best_gemm_kernels());
  } else {
    if (!kernels::parse_gemm_kernels(input.server.gemm_kernels)) {
      throw InputError({Issue{.file = input.name,
                              .line = 0,
                              .key = "server.gemm_kernels",
                              .message = fmt::format("there are no kernels '{}'", input.server.gemm_kernels),
                              .hint = "auto, generic, haswell or skx"}});
    }
    options.fleet.gemm_kernels = input.server.gemm_kernels;
  }
  return options;
}

std::vector<plan::DeviceState> idle_devices(const std::vector<fleet::DeviceProfile>& devices) {
  std::vector<plan::DeviceState> states;
  for (const fleet::DeviceProfile& device : devices) states.push_back({device, {}, {}, {}});
  return states;
}

std::string show(Bytes bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.value());
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes.value()) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string show(Seconds time) {
  const double s = time.value();
  if (!std::isfinite(s)) return "?";
  if (s < 1e-3) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 60) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<std::int64_t>(s);
  if (s < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

comm::MpiTransportOptions transport_options(const Input& input) {
  comm::MpiTransportOptions options{.shared_memory = input.fleet.shared_memory};
  if (input.server.interface == "auto") return options;
  const std::optional<std::string> address = comm::address_of_interface(input.server.interface);
  if (!address) {
    throw InputError(
        {Issue{.file = input.name,
               .line = 0,
               .key = "server.interface",
               .message = fmt::format("this host has no interface '{}' with an IPv4 address", input.server.interface),
               .hint = "`ip -4 address` lists them"}});
  }
  options.interface = *address;
  return options;
}

}  // namespace cleave::app
