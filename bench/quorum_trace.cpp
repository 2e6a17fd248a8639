// What liars leave behind where second devices return digests and steps can be taken back (docs/security.md).
//
//   quorum_trace runs [RUNS] [FIRST] [stages]   a fifth of the devices lie, at rates from 1 % on: runs that end well
//   quorum_trace honest [BLOCKS] [stages]       honest devices, all recomputed: how many accused
//   quorum_trace table                          the chance that a false bit of a coalition stands
//
// Seeds say who lies, how and how often; the draws of witnesses and the keys of digests are the operating system's, so
// each run has its own. Exit code 3 where a run ends with other bits or an honest device is accused.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cleave/base/siphash.hpp"
#include "cleave/sched/collusion.hpp"
#include "inprocess/liar_runs.hpp"

namespace {

using namespace cleave;
using testing_run::Outcome;
using testing_run::Setting;

Setting setting_in(bool stages) {
  return stages ? testing_run::stage_liar_run_setting() : testing_run::liar_run_setting();
}

int run_liars(std::int64_t runs, std::uint64_t first, bool stages) {
  Setting s = setting_in(stages);
  const std::uint64_t honest = testing_run::honest_bits(s);
  std::int64_t same = 0, found = 0, taken_back = 0, stays = 0, blocks = 0;
  double least = 1;
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(runs); ++seed) {
    s.churn = {testing_run::draw_liar(seed)};
    s.verification.pair_secret = secret_key();  // as a run has it: other pairs each time
    const Outcome outcome = testing_run::train(s);
    if (outcome.hash != honest) {
      fmt::print("seed {}: other bits (device {} lied in {:.3f} of its tasklets, kind {})\n", seed,
                 s.churn[0].device.value, s.churn[0].factor, static_cast<int>(s.churn[0].fault));
    }
    same += outcome.hash == honest ? 1 : 0;
    found += outcome.distrusted == std::vector{s.churn[0].device} ? 1 : 0;
    taken_back += outcome.taken_back > 0 ? 1 : 0;
    stays += outcome.parts_stay;
    blocks += outcome.tasklets;
    least = std::min(least, s.churn[0].factor);
    if ((seed - first + 1) % 10 == 0) {
      fmt::print("{} runs: {} honest\n", seed - first + 1, same);
      std::fflush(stdout);
    }
  }
  fmt::print(
      "{} of {} runs end with the honest bits; the liar alone was found out in {}, steps were taken back in {}, out of "
      "reach in {}; {} tasklets of {} steps; shares from {:.3f}\n",
      same, runs, found, taken_back, stays, blocks, s.steps, least);
  return same == runs ? 0 : 3;
}

int run_honest(std::int64_t blocks, bool stages) {
  Setting s = setting_in(stages);
  s.verification.fraction = 1.0;
  s.verification.rollback = 0;
  std::int64_t done = 0, pairs = 0, suspected = 0, accused = 0;
  while (done < blocks) {
    const Outcome outcome = testing_run::train(s);
    done += outcome.verification.blocks;
    pairs += outcome.verification.checked;
    suspected += outcome.verification.suspected;
    accused += std::ssize(outcome.verification.wrong);
    fmt::print("{} honest tasklets, {} {}: {} suspected, {} accused\n", done, pairs,
               stages ? "visits and sums recomputed" : "of them with a witness", suspected, accused);
    std::fflush(stdout);
  }
  return accused == 0 ? 0 : 3;
}

void print_table() {
  fmt::print("| share of colluders | fraction | q | false blocks a step | stands, N = 0 | N = 5 | N = 20 |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const std::int64_t coalition : {1, 100, 200, 500}) {
    for (const double fraction : {0.1, 1.0}) {
      for (const std::int64_t lies : {1, 10}) {
        sched::Collusion c{
            .devices = 1000, .coalition = coalition, .fraction = fraction, .false_blocks = lies, .rollback = 0};
        fmt::print("| {} | {} | {:.3f} | {} |", static_cast<double>(coalition) / 1000, fraction,
                   sched::detection_chance(c), lies);
        for (const std::int64_t rollback : {0, 5, 20}) {
          c.rollback = rollback;
          fmt::print(" {:.2g} |", sched::stand_chance(c));
        }
        fmt::print("\n");
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const bool stages = argc > 1 && std::string_view(argv[argc - 1]) == "stages";
  if (stages) --argc;
  if (what == "runs")
    return run_liars(argc > 2 ? std::atoll(argv[2]) : 100, argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1, stages);
  if (what == "honest") return run_honest(argc > 2 ? std::atoll(argv[2]) : 1'000'000, stages);
  if (what == "table") {
    print_table();
    return 0;
  }
  fmt::print(stderr, "quorum_trace runs [RUNS] [FIRST] [stages] | honest [BLOCKS] [stages] | table\n");
  return 2;
}
