// Options of a trainer; the words for sizes and times.
#include "input/run_setup.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <string_view>

#include "cleave/kernels/gemm_kernels.hpp"

namespace cleave::app {

namespace {

server::Verification verification_of(const Input& input) {
  server::Verification v = input.verify;
  std::random_device secret;  // devices must not be able to foresee it; results do not depend on it
  v.seed = (static_cast<std::uint64_t>(secret()) << 32) | secret();
  return v;
}

}  // namespace

server::TrainerOptions trainer_options(const Input& input) {
  server::TrainerOptions options;
  static_cast<sched::StepSpec&>(options) = input.step;
  options.train = input.train;
  options.executor = {
      .threads = input.server.threads, .verification = verification_of(input), .profile = input.profile};
  options.fleet.clock = input.fleet.clock;
  options.fleet.patience = input.fleet.patience;
  options.fleet.gemm_kernels = input.server.gemm_kernels == "auto" ? kernels::name_of(kernels::best_gemm_kernels())
                                                                   : std::string_view(input.server.gemm_kernels);
  return options;
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
  if (s >= 1e15) return fmt::format("{:.3g} h", s / 3600);  // beyond what whole numbers hold
  const auto whole = static_cast<std::int64_t>(s);
  if (s < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

comm::MpiTransportOptions transport_options(const Input& input) {
  comm::MpiTransportOptions options{.shared_memory = input.fleet.shared_memory};
  if (input.server.interface == "auto") return options;
  const std::optional<std::string> address = comm::address_of_interface(input.server.interface);
  if (!address)
    throw fault_at(input, "server.interface",
                   fmt::format("this host has no interface '{}' with an IPv4 address", input.server.interface),
                   "`ip -4 address` lists them");
  options.interface = *address;
  return options;
}

}  // namespace cleave::app
