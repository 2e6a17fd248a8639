// What the transport costs: waking a rank that waits, small messages, large ones beside memcpy, copied and read in
// place, and waiting itself.
//
//   mpirun -n 2 build/release/bench/transport_bench [SECONDS]        default: 2 seconds of waiting
//
// Rank 1 sends every frame back, rank 0 measures and holds what came back against what it sent. Medians; a round trip
// has two hops, so a hop is half of it. A frame that is read in place takes no time on its way, so there a hop is to
// write it, to hand it over and to read it: two copies at best.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/mpi.hpp"
#include "timing.hpp"

namespace {

using namespace cleave;
using bench::median;

constexpr Seconds kPatience{60};
const SteadyClock clock_now;

comm::Frame expect(comm::Transport& transport) {
  auto received = transport.wait(kPatience);
  CLEAVE_ASSERT(received.has_value(), "rank {} waited in vain", transport.rank());
  return std::move(received->frame);
}

comm::Frame filled(std::int64_t bytes, int seed) {
  comm::Frame frame(bytes);
  for (std::int64_t i = 0; i < bytes; ++i) frame.data()[i] = static_cast<std::byte>((i * 31 + seed) % 251);
  return frame;
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Seconds of `count` round trips of `bytes`, each after rank 1 has waited for `pause`.
std::vector<double> round_trips(comm::Transport& transport, int count, std::int64_t bytes, Seconds pause) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const comm::Frame sent = filled(bytes, i);
    comm::Frame copy = sent.copy();
    if (pause > Seconds(0)) std::this_thread::sleep_for(std::chrono::duration<double>(pause.value()));
    const Seconds start = clock_now.now();
    transport.send(1, std::move(copy));
    const comm::Frame back = expect(transport);
    times.push_back((clock_now.now() - start).value());
    CLEAVE_ASSERT(back.size() == bytes && std::memcmp(back.data(), sent.data(), static_cast<std::size_t>(bytes)) == 0,
                  "round trip {} came back changed", i);
  }
  return times;
}

// Round trips a second with `window` frames under way.
double rate(comm::Transport& transport, int count, int window, std::int64_t bytes) {
  const Seconds start = clock_now.now();
  int sent = 0;
  for (int done = 0; done < count; ++done) {
    for (; sent < count && sent < done + window; ++sent) transport.send(1, filled(bytes, sent));
    const comm::Frame back = expect(transport);
    const comm::Frame expected = filled(bytes, done);
    CLEAVE_ASSERT(std::memcmp(back.data(), expected.data(), static_cast<std::size_t>(bytes)) == 0, "frame {}", done);
  }
  return count / (clock_now.now() - start).value();
}

double memcpy_rate(std::int64_t bytes) {
  const comm::Frame from = filled(bytes, 1);
  comm::Frame to(bytes);
  std::vector<double> times;
  for (int i = 0; i < 20; ++i) {
    const Seconds start = clock_now.now();
    std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
    times.push_back((clock_now.now() - start).value());
  }
  CLEAVE_ASSERT(std::memcmp(to.data(), from.data(), static_cast<std::size_t>(bytes)) == 0, "memcpy");
  return static_cast<double>(bytes) / median(times);
}

// A frame's numbers come from somewhere and go somewhere.
comm::Frame written(std::span<const std::byte> numbers) {
  comm::Frame frame(static_cast<std::int64_t>(numbers.size()));
  std::memcpy(frame.data(), numbers.data(), numbers.size());
  return frame;
}

void read(const comm::Frame& frame, std::vector<std::byte>& numbers) {
  numbers.resize(static_cast<std::size_t>(frame.size()));
  std::memcpy(numbers.data(), frame.data(), numbers.size());
}

// Bytes a second of hops in which each side writes and reads every byte once.
double written_and_read_rate(comm::Transport& transport, std::int64_t bytes) {
  const comm::Frame pattern = filled(bytes, 1);
  const std::vector<std::byte> sent(pattern.bytes().begin(), pattern.bytes().end());
  std::vector<std::byte> got;
  std::vector<double> times;
  for (int i = 0; i < 20; ++i) {
    const Seconds start = clock_now.now();
    transport.send(1, written(sent));
    read(expect(transport), got);
    times.push_back((clock_now.now() - start).value());
    CLEAVE_ASSERT(got == sent, "round trip {} came back changed", i);
  }
  return static_cast<double>(bytes) / (median(times) / 2);
}

// The other side of it, until told to end.
void write_and_read(comm::Transport& transport) {
  std::vector<std::byte> numbers;
  while (true) {
    comm::Frame frame = expect(transport);
    const auto header = comm::decode(frame);
    if (header && header->kind == comm::Kind::ready) return;
    read(frame, numbers);
    frame = comm::Frame();
    transport.send(0, written(numbers));
  }
}

constexpr std::array<std::int64_t, 7> kHandedOverKib = {32, 64, 256, 1024, 4096, 16384, 65536};

void measure_hand_over(comm::Transport& copying, comm::Transport& sharing) {
  fmt::print("write, hand over, read:\n");
  for (const std::int64_t kibibytes : kHandedOverKib) {
    const std::int64_t bytes = kibibytes << 10;
    const double copied = written_and_read_rate(copying, bytes);
    copying.send(1, comm::encode_ready());
    CLEAVE_ASSERT(!copying.poll(), "nobody answers");  // but it must leave
    const double shared = written_and_read_rate(sharing, bytes);
    sharing.send(1, comm::encode_ready());
    CLEAVE_ASSERT(!sharing.poll(), "nobody answers");
    const double best = memcpy_rate(bytes) / 2;
    fmt::print("{:<24} copied {:>6.2f} GB/s, in place {:>6.2f} GB/s, two memcpy {:>6.2f} GB/s ({:.0f} and {:.0f} %)\n",
               fmt::format("{} KiB", kibibytes), copied / 1e9, shared / 1e9, best / 1e9, 100 * copied / best,
               100 * shared / best);
  }
}

void measure(comm::Transport& transport, Seconds waiting) {
  fmt::print("{:<44} {:>12}\n", "", "median");
  round_trips(transport, 100, 256, Seconds(0));
  fmt::print("{:<44} {:>9.1f} us\n", "hop of 256 B, peer awake",
             5e5 * median(round_trips(transport, 500, 256, Seconds(0))));
  for (const double pause : {1e-3, 20e-3, 100e-3}) {
    const auto times = round_trips(transport, 30, 256, Seconds(pause));
    fmt::print("{:<44} {:>9.1f} us\n", fmt::format("hop of 256 B, peer asleep for {:g} ms", 1e3 * pause),
               5e5 * median(times));
  }
  fmt::print("{:<44} {:>9.1f} us\n", "256 B there and back, 64 under way, each", 1e6 / rate(transport, 20000, 64, 256));
  for (const std::int64_t mebibytes : {1, 4, 16, 64}) {
    const std::int64_t bytes = mebibytes << 20;
    const double through = static_cast<double>(bytes) / (median(round_trips(transport, 20, bytes, Seconds(0))) / 2);
    const double copied = memcpy_rate(bytes);
    fmt::print("{:<44} {:>7.2f} GB/s  ({:.0f} % of memcpy)\n", fmt::format("{} MiB", mebibytes), through / 1e9,
               100 * through / copied);
  }
  // Rank 1 tells how much processor time it took while nothing came.
  std::this_thread::sleep_for(std::chrono::duration<double>(waiting.value()));
  transport.send(1, comm::encode_ready());
  const comm::Frame answer = expect(transport);
  double share = 0;
  std::memcpy(&share, answer.data(), sizeof share);
  fmt::print("{:<44} {:>9.2f} % of a core\n", "waiting", 100 * share);
}

void echo(comm::Transport& transport) {
  while (true) {
    const double before = processor_seconds();
    const Seconds start = clock_now.now();
    comm::Frame frame = expect(transport);
    const auto header = comm::decode(frame);
    if (header && header->kind == comm::Kind::ready) {
      const double share = (processor_seconds() - before) / (clock_now.now() - start).value();
      comm::Frame answer(sizeof share);
      std::memcpy(answer.data(), &share, sizeof share);
      return transport.send(0, std::move(answer));
    }
    transport.send(0, std::move(frame));
  }
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiSession session(argc, argv);
  if (session.size() != 2) {
    if (session.rank() == 0) fmt::print(stderr, "transport_bench: wants 2 ranks, not {}\n", session.size());
    return 2;
  }
  const auto transport = comm::make_mpi_transport(session, {.shared_memory = false});
  const auto sharing = comm::make_mpi_transport(session);
  if (session.rank() == 0) {
    measure_hand_over(*transport, *sharing);
    measure(*transport, Seconds(argc > 1 ? std::atof(argv[1]) : 2.0));
  } else {
    for (int sizes = 0; sizes < static_cast<int>(kHandedOverKib.size()); ++sizes) {
      write_and_read(*transport);
      write_and_read(*sharing);
    }
    echo(*transport);
  }
  transport->close(Seconds(5));
  return 0;
}
