// Trials of products and of memory.
#include "commands/host_speed.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/kernels/gemm.hpp"

namespace cleave::app {

namespace {

// A square product of one K block: large enough that its rate is that of any larger one, 6 ms on a fast core.
constexpr std::int64_t kEdge = 768;
// Three arrays of this many floats are 192 MiB, several times a last-level cache.
constexpr std::size_t kStream = std::size_t{16} << 20;
constexpr Seconds kTrial{0.4};

int usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// Calls `work` again and again for a while; the most that one call did in a second, work being `amount` a call.
double best_rate(double amount, const std::function<void()>& work) {
  SteadyClock clock;
  work();  // brings code and data in
  double best = 0;
  for (const Seconds begin = clock.now(); clock.now() - begin < kTrial;) {
    const Seconds before = clock.now();
    work();
    best = std::max(best, amount / (clock.now() - before).value());
  }
  return best;
}

// The same on `threads` threads at once: the sum of what they did in the same time.
double joint_rate(int threads, double amount, const std::function<std::function<void()>()>& make_work) {
  SteadyClock clock;
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::vector<std::thread> team;
  for (double& rate : rates) {
    team.emplace_back([&] {
      const std::function<void()> work = make_work();
      work();
      const Seconds begin = clock.now();
      std::int64_t calls = 0;
      for (; clock.now() - begin < kTrial; ++calls) work();
      rate = amount * static_cast<double>(calls) / (clock.now() - begin).value();
    });
  }
  for (std::thread& one : team) one.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

std::function<void()> product() {
  std::vector<float> a(kEdge * kEdge, 1.0F), b(kEdge * kEdge, 0.5F), c(kEdge * kEdge);
  return [a = std::move(a), b = std::move(b), c = std::move(c)]() mutable {
    kernels::gemm_block({.m = kEdge, .n = kEdge, .k = kEdge}, {a.data(), kEdge}, {b.data(), kEdge}, {c.data(), kEdge});
  };
}

std::function<void()> triad() {
  std::vector<float> a(kStream, 0.0F), b(kStream, 1.0F), c(kStream, 2.0F);
  return [a = std::move(a), b = std::move(b), c = std::move(c), scale = 0.5F]() mutable {
    scale += 1e-3F;
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = b[i] + scale * c[i];
    b[0] = a[a.size() / 2];
  };
}

}  // namespace

HostSpeed measure_host() {
  constexpr double kFlop = 2.0 * kEdge * kEdge * kEdge, kTriadBytes = 3.0 * sizeof(float) * kStream;
  HostSpeed speed;
  speed.cores = usable_cores();
  speed.core = FlopsPerSecond(best_rate(kFlop, product()));
  speed.all = FlopsPerSecond(std::max(speed.core.value(), joint_rate(speed.cores, kFlop, product)));
  speed.memory = BytesPerSecond(best_rate(kTriadBytes, triad()));
  speed.memory_all = BytesPerSecond(std::max(speed.memory.value(), joint_rate(speed.cores, kTriadBytes, triad)));
  return speed;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a processor without a name";
}

}  // namespace cleave::app
