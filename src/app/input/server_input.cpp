// Declarations of the keys of `server`.
#include "input/server_input.hpp"
#include "input/limits.hpp"

#include <fmt/format.h>

#include "cleave/base/threads.hpp"
#include "cleave/config/nearest.hpp"
#include "cleave/kernels/gemm_kernels.hpp"

namespace cleave::app {

namespace {
constexpr const char* kAuto = "auto";
}  // namespace

ServerInput read_server(const config::Section& in, fleet::ServerProfile& profile) {
  ServerInput s;
  profile.nic_out = in.rate("nic_out", {.default_value = profile.nic_out,
                                        .min = kSlowestLink,
                                        .unlimited = true,
                                        .help = "Rate of the server's interface towards devices."});
  profile.nic_in = in.rate("nic_in", {.default_value = profile.nic_in,
                                      .min = kSlowestLink,
                                      .unlimited = true,
                                      .help = "Rate of the server's interface from devices."});
  profile.compute = in.compute(
      "compute",
      {.default_value = profile.compute, .min = kSlowestProcessor, .help = "Modelled rate of the server's kernels."});
  profile.memory_bandwidth =
      in.rate("memory_bandwidth", {.default_value = profile.memory_bandwidth,
                                   .min = kSlowestLink,
                                   .help = "Modelled memory bandwidth of the server's kernels."});
  profile.power_idle =
      in.watts("power_idle", {.default_value = profile.power_idle, .help = "Power of the server's host at rest."});
  profile.power_load = in.watts("power_load", {.default_value = profile.power_load,
                                               .help = "Its power while its interface or its processor works."});
  if (profile.power_load < profile.power_idle)
    in.fault("power_load", "a server that works takes no less than one at rest", "at least server.power_idle");
  s.threads = static_cast<int>(in.integer(
      "threads", {.default_value = s.threads,
                  .min = 0,
                  .max = 1024,
                  .help = "Real threads of the server's kernels and copies; 0: one for each core that it may "
                          "use, but no more than 4. Results do not depend on it."}));
  constexpr int kMostByItself = 4;
  s.threads = threads_for(s.threads, kMostByItself);
  s.gemm_kernels = in.text("gemm_kernels",
                           {.default_value = "auto",
                            .help = "BLIS kernels that all ranks use: auto, generic, haswell, skx or cortexa57 (Arm). "
                                    "Results differ in their last bits between them."});
  if (s.gemm_kernels != kAuto && !kernels::parse_gemm_kernels(s.gemm_kernels) && in.sound("gemm_kernels")) {
    std::vector<std::string> known{kAuto};
    for (const kernels::GemmKernels one : kernels::all_gemm_kernels()) known.emplace_back(kernels::name_of(one));
    in.fault("gemm_kernels", fmt::format("there are no kernels '{}'", s.gemm_kernels),
             config::hint_for(s.gemm_kernels, known));
  }
  s.interface = in.text("interface", {.default_value = "auto",
                                      .help = "Where the server listens for device ranks of other hosts: a network "
                                              "interface of its host, or an IPv4 address of it; auto: the one by which "
                                              "it reaches those hosts."});
  return s;
}

}  // namespace cleave::app
