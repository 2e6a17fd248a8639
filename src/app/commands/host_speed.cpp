// Trials. Messages of a calibration are frames whose first byte says what to do with them.
#include "commands/host_speed.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/gemm_kernels.hpp"

namespace cleave::app {

namespace {

// A square product of one K block: large enough that its rate is that of any larger one, 6 ms on a fast core.
constexpr std::int64_t kEdge = 768;
// Three arrays of this many floats are 192 MiB, several times a last-level cache.
constexpr std::size_t kStream = std::size_t{16} << 20;
constexpr Seconds kTrial{0.4};
constexpr int kRoundTrips = 200, kTransfers = 8;
constexpr std::int64_t kLargeMessage = std::int64_t{16} << 20;
constexpr Seconds kAnswerLimit{20}, kSilenceLimit{60};

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

enum class Order : std::uint8_t { echo, acknowledge, name, leave };

comm::Frame order(Order what, std::int64_t bytes = comm::kHeaderBytes) {
  comm::Frame frame(bytes);
  std::memset(frame.data(), 0, static_cast<std::size_t>(bytes));
  *frame.data() = static_cast<std::byte>(what);
  return frame;
}

comm::Frame answer_of(comm::Transport& transport, int rank) {
  SteadyClock clock;
  for (const Seconds begin = clock.now(); clock.now() - begin < kAnswerLimit;) {
    if (auto received = transport.wait(Seconds(1)); received && received->source == rank)
      return std::move(received->frame);
  }
  throw EnvironmentError("calibrate", fmt::format("rank {}", rank), "no answer");
}

Seconds round_trip(comm::Transport& transport, int rank, Order what, std::int64_t bytes) {
  SteadyClock clock;
  comm::Frame frame = order(what, bytes);
  const Seconds begin = clock.now();
  transport.send(rank, std::move(frame));
  (void)answer_of(transport, rank);
  return clock.now() - begin;
}

RankLink measure_link(comm::Transport& transport, int rank) {
  RankLink link{.rank = rank, .host = {}, .latency = {}, .down = {}, .up = {}};
  transport.send(rank, order(Order::name));
  const comm::Frame name = answer_of(transport, rank);
  link.host.assign(reinterpret_cast<const char*>(name.data()), static_cast<std::size_t>(name.size()));

  std::vector<Seconds> trips;
  for (int i = 0; i < kRoundTrips; ++i) trips.push_back(round_trip(transport, rank, Order::echo, comm::kHeaderBytes));
  std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
  link.latency = trips[kRoundTrips / 2] / 2;

  // There and an empty answer, then there and back: the difference is the way back.
  Seconds there{1e9}, both{1e9};
  for (int i = 0; i < kTransfers; ++i) {
    there = std::min(there, round_trip(transport, rank, Order::acknowledge, kLargeMessage));
    both = std::min(both, round_trip(transport, rank, Order::echo, kLargeMessage));
  }
  link.down = BytesPerSecond(static_cast<double>(kLargeMessage) / there.value());
  // Noise can make the difference small: the way back is no faster than twice the mean of both ways.
  const Seconds back = std::max(both - there, both / 4);
  link.up = BytesPerSecond(static_cast<double>(kLargeMessage) / back.value());
  return link;
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

std::vector<RankLink> measure_links(comm::Transport& transport) {
  const auto let_go = [&] {
    for (int rank = 1; rank < transport.size(); ++rank) transport.send(rank, order(Order::leave));
  };
  std::vector<RankLink> links;
  try {
    for (int rank = 1; rank < transport.size(); ++rank) links.push_back(measure_link(transport, rank));
  } catch (...) {
    let_go();  // the others would wait until they take the server for gone
    throw;
  }
  let_go();
  return links;
}

void echo_until_told(comm::Transport& transport, const std::string& host) {
  SteadyClock clock;
  Seconds heard = clock.now();
  while (clock.now() - heard < kSilenceLimit && !transport.gone(0)) {
    auto received = transport.wait(Seconds(1));
    if (!received || received->source != 0 || received->frame.empty()) continue;
    heard = clock.now();
    switch (static_cast<Order>(*received->frame.data())) {
      case Order::echo: transport.send(0, std::move(received->frame)); break;
      case Order::acknowledge: transport.send(0, order(Order::acknowledge)); break;
      case Order::name: {
        comm::Frame name(static_cast<std::int64_t>(host.size()));
        std::memcpy(name.data(), host.data(), host.size());
        transport.send(0, std::move(name));
        break;
      }
      case Order::leave: return;
    }
  }
}

}  // namespace cleave::app
