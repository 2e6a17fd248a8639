// What slips through a sample: whole runs with liars, the stated probability beside the share of runs that ended with
// other bits than the honest one.
//
//   verify_slip [SEEDS]        default: 100 runs for each line
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "inprocess/run.hpp"

namespace {

using namespace cleave;
using Mode = server::VerifyMode;

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t run = 0;  // every run has a secret of its own
  const int seeds = argc > 1 ? std::atoi(argv[1]) : 100;
  testing_run::Setting s = testing_run::small_setting();
  const std::uint64_t honest = testing_run::train(s).hash;
  s.devices = testing_run::unlike_devices(5);
  fmt::print(
      "| mode | fraction | liars | share of their blocks wrong | runs | stated | other bits | standard error |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (const auto& [mode, fraction, liars, share] : {std::tuple{Mode::sample, 0.25, 1, 1.0},
                                                     {Mode::sample, 0.5, 1, 1.0},
                                                     {Mode::sample, 0.75, 1, 1.0},
                                                     {Mode::sample, 0.5, 2, 1.0},
                                                     {Mode::sample, 0.75, 2, 1.0},
                                                     {Mode::sample, 0.5, 1, 0.3},
                                                     {Mode::audit, 0.5, 1, 1.0},
                                                     {Mode::audit, 0.75, 2, 0.3}}) {
    s.churn.clear();
    for (int liar = 0; liar < liars; ++liar)
      s.churn.push_back(
          {Seconds(0), DeviceId(1 + 2 * liar), fleet::ChurnKind::faulty, share, fleet::InjectedFaultKind::element});
    double stated = 0, other = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      s.verification = {.mode = mode, .fraction = fraction, .seed = ++run};
      const testing_run::Outcome outcome = testing_run::train(s);
      stated += server::slip_probability(s.verification, outcome.verification) / seeds;
      other += outcome.hash == honest ? 0.0 : 1.0 / seeds;
    }
    fmt::print("| {} | {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} |\n", server::name_of(mode), fraction, liars, share,
               seeds, stated, other, std::sqrt(stated * (1 - stated) / seeds));
    std::fflush(stdout);
  }
  return 0;
}
