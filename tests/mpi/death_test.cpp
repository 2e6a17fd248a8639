// Ranks that are killed, stopped, or simply exit while frames are under way, or in their hands: the others go on, the
// server notices and gets back what they held, and mpirun ends with 0. Needs mpirun --enable-recovery. Rank 0 is the
// server; it checks, and its exit code is the verdict. With the argument `streams` ranks speak as over several hosts.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/mpi.hpp"

namespace cleave::comm {
namespace {

constexpr std::int64_t kSize = 4 << 20;
constexpr int kRounds = 12;
constexpr Seconds kPatience{40};
const SteadyClock steady;

enum class Fate { survives, killed, stopped, exits };

// From the second rank on, in turn; the last rank survives.
Fate fate_of(int rank, int size) {
  if (rank == size - 1) return Fate::survives;
  return static_cast<Fate>(rank % 4);
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "death test: %s\n", what);
  MpiSession::abort_all(1);
}

void require(bool condition, const char* what) {
  if (!condition) fail(what);
}

Frame bulk() {
  Frame frame(kSize);
  std::memset(frame.data(), 7, static_cast<std::size_t>(kSize));
  return frame;
}

bool is_bulk(const Frame& frame) { return frame.size() == kSize; }

// Echoes bulk frames until its fate comes, or goodbye; the first one it keeps.
[[noreturn]] void serve(Transport& transport) {
  Frame kept;
  const Fate fate = fate_of(transport.rank(), transport.size());
  transport.send(0, encode(Hello{.pid = getpid(), .host = "here", .version = "test"}));
  int seen = 0;
  while (!transport.gone(0)) {
    auto received = transport.wait(Seconds(1));
    if (!received) continue;
    if (!is_bulk(received->frame)) {
      transport.send(0, encode_farewell());
      transport.close(kPatience);
      kept = Frame();
      MpiSession::leave_now(0);
    }
    transport.send(0, bulk());
    if (kept.empty()) kept = std::move(received->frame);
    if (++seen < 3 || fate == Fate::survives) continue;
    // Its last answers are under way, and more frames are coming to it.
    if (fate == Fate::exits) MpiSession::leave_now(0);
    raise(fate == Fate::killed ? SIGKILL : SIGSTOP);
  }
  MpiSession::leave_now(1);
}

int run_server(Transport& transport) {
  const auto size = static_cast<std::size_t>(transport.size());
  std::vector<pid_t> pid(size, 0);
  std::vector<int> echoed(size, 0);
  std::vector<bool> farewell(size, false);
  const Seconds start = steady.now();
  const auto in_time = [&] { require(steady.now() - start < kPatience, "took too long"); };
  const auto take = [&] {
    in_time();
    auto received = transport.wait(Seconds(0.05));
    if (!received) return;
    const auto source = static_cast<std::size_t>(received->source);
    if (is_bulk(received->frame)) {
      ++echoed[source];
    } else if (const auto hello = decode_hello(received->frame)) {
      pid[source] = static_cast<pid_t>(hello->pid);
      for (int i = 0; i < kRounds; ++i) transport.send(received->source, bulk());
    } else {
      const auto header = decode(received->frame);
      require(header && header->kind == Kind::farewell, "an unexpected frame");
      farewell[source] = true;
    }
  };
  const auto all = [&](auto condition) {
    for (int rank = 1; rank < transport.size(); ++rank) {
      if (!condition(rank, fate_of(rank, transport.size()), static_cast<std::size_t>(rank))) return false;
    }
    return true;
  };

  // The survivors get everything through, whatever happens beside them.
  while (!all([&](int, Fate fate, std::size_t i) { return fate != Fate::survives || echoed[i] == kRounds; })) take();
  // Deaths are noticed, a stopped rank is not taken for dead.
  while (!all([&](int rank, Fate fate, std::size_t) {
    return fate == Fate::survives || fate == Fate::stopped || transport.gone(rank);
  })) {
    take();
  }
  require(all([&](int rank, Fate fate, std::size_t) {
            return (fate != Fate::survives && fate != Fate::stopped) || !transport.gone(rank);
          }),
          "a living rank is taken for dead");
  for (int rank = 1; rank < transport.size(); ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    require(echoed[i] <= kRounds, "more came back than was sent");
    if (fate_of(rank, transport.size()) == Fate::stopped) kill(pid[i], SIGKILL);
    if (fate_of(rank, transport.size()) != Fate::survives) transport.abandon(rank);
    transport.send(rank, encode_goodbye());
  }
  while (!all([&](int rank, Fate fate, std::size_t i) {
    return fate == Fate::survives ? farewell[i] : transport.gone(rank);
  })) {
    take();
  }
  // What dead ranks had in their hands is free; frames to the living were read and let go.
  while (transport.stats().bytes_lent > 0) take();
  require(transport.close(Seconds(5)), "sends to living ranks did not complete");
  std::printf("death test: good after %.2f s\n", (steady.now() - start).value());
  return 0;
}

}  // namespace
}  // namespace cleave::comm

int main(int argc, char** argv) {
  using namespace cleave::comm;
  MpiSession mpi(argc, argv);
  MpiTransportOptions options;
  if (argc > 1 && std::strcmp(argv[1], "streams") == 0) {
    options = {.shared_memory = false, .interface = "127.0.0.1", .streams = true};
  }
  const auto transport = make_mpi_transport(mpi, options);
  if (mpi.rank() != 0) serve(*transport);
  require(launcher_keeps_survivors(), "needs OMPI_MCA_orte_enable_recovery=1");
  const int code = run_server(*transport);
  std::fflush(nullptr);
  MpiSession::leave_now(code);
}
