// simulate: tells one story after another, each drawn from a seed, until so many are told or the time is up.
//
//   simulate FIRST COUNT [SECONDS [tiles | sample | quorum | stages]]   stories FIRST, FIRST + 1, ...; with `sample`
//   the server checks half of the blocks only, and a step must have the honest bits where everybody who lied in it was
//   found out before it ended; with `quorum` a second device computes each block, too; with `stages` steps are laid out
//   in stages, and everything is recomputed by a second device or by the server
//
// A story that ends badly is told again with less and less in it and printed; the exit code is then 1. It is told twice
// to see that it always ends alike.
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "world.hpp"

namespace cleave::simulation {
namespace {

/// Bytes by which the heap may grow over all stories.
constexpr std::size_t kMostGrowth = std::size_t{64} << 20;
constexpr std::uint64_t kWarmUp = 20;
constexpr int kMostFaults = 5;

struct Sort {
  std::string_view name;
  Story (*draw)(std::uint64_t seed);
};
constexpr Sort kSorts[] = {{"tiles", draw_story},
                           {"sample", draw_sampled_story},
                           {"quorum", draw_paired_story},
                           {"stages", draw_staged_story}};

int run(std::uint64_t first, std::uint64_t count, double seconds, const Sort& sort) {
  const pid_t canary = fork();
  if (canary == 0) {
    while (true) pause();
  }
  named_process() = canary;
  const auto begun = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); };
  std::uint64_t told = 0;
  int faults = 0;
  std::int64_t lost = 0, rejected = 0, recomputed = 0, slipped = 0, mended = 0, witnesses = 0;
  Seconds longest{0};
  std::size_t heap = 0;
  for (; told < count && elapsed() < seconds && faults < kMostFaults; ++told) {
    const Story story = sort.draw(first + told);
    const Ending ending = tell(story);
    lost += ending.lost;
    rejected += ending.rejected;
    recomputed += ending.recomputed;
    witnesses += ending.witnesses;
    slipped += ending.slipped ? 1 : 0;
    mended += ending.recomputed > 0 && !ending.slipped ? 1 : 0;
    longest = std::max(longest, ending.longest_step);
    if (told == kWarmUp) heap = ::mallinfo2().uordblks;
    if (told % 500 == 499) std::fprintf(stderr, "simulate: %llu stories\n", static_cast<unsigned long long>(told + 1));
    if (ending.fault.empty()) continue;
    ++faults;
    const Ending again = tell(story);
    std::printf("FAULT: %s%s\n%s\nwith less in it, %s\n", ending.fault.c_str(),
                again.fault == ending.fault ? "" : " (another time: another ending)", show(story).c_str(),
                show(minimised(story)).c_str());
  }
  if (told > kWarmUp && ::mallinfo2().uordblks > heap + kMostGrowth) {
    std::printf("FAULT: the heap has grown by %zu bytes\n", ::mallinfo2().uordblks - heap);
    ++faults;
  }
  int status = 0;
  if (::waitpid(canary, &status, WNOHANG) != 0) {
    std::printf("FAULT: a process that ranks named has ended\n");
    ++faults;
  }
  ::kill(canary, SIGKILL);
  ::waitpid(canary, &status, 0);
  std::printf(
      "%llu stories from %llu on in %.0f s: %d bad; %lld blocks lost, %lld rejected; the longest step took %.0f s of "
      "virtual time\n",
      static_cast<unsigned long long>(told), static_cast<unsigned long long>(first), elapsed(), faults,
      static_cast<long long>(lost), static_cast<long long>(rejected), longest.value());
  if (sort.name == "sample") {
    std::printf(
        "a sample of the blocks: in %lld stories steps were run again (%lld blocks in all stories) and had the honest "
        "bits; in %lld a device may have lied that was not found out in time\n",
        static_cast<long long>(mended), static_cast<long long>(recomputed), static_cast<long long>(slipped));
    if (told >= 100 && mended == 0) {
      std::printf("FAULT: no step was run again\n");
      ++faults;
    }
  }
  const bool watched = sort.name == "stages" || sort.name == "quorum";
  if (watched) {
    std::printf("%s: %lld answers recomputed by a second device, %lld steps run again\n", sort.name.data(),
                static_cast<long long>(witnesses), static_cast<long long>(recomputed));
  }
  // Stories in which nothing goes wrong test nothing.
  const bool nobody_watched = watched && (witnesses == 0 || recomputed == 0);
  if (told >= 100 && (lost == 0 || rejected == 0 || nobody_watched)) {
    std::printf("FAULT: the stories hit nothing\n");
    ++faults;
  }
  return faults == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cleave::simulation

int main(int argc, char** argv) {
  using cleave::simulation::kSorts;
  const std::string_view wanted = argc > 4 ? argv[4] : "tiles";
  const auto* const sort = std::ranges::find(kSorts, wanted, &cleave::simulation::Sort::name);
  if (argc < 3 || sort == std::end(kSorts)) {
    std::fprintf(stderr, "simulate FIRST COUNT [SECONDS [tiles | sample | quorum | stages]]\n");
    return 2;
  }
  return cleave::simulation::run(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10),
                                 argc > 3 ? std::atof(argv[3]) : 1e9, *sort);
}
