// How fast large frames go between rank 0 and ranks of other hosts: out, back, or both at once.
//
//   mpirun ... build/release/bench/link_bench out|back|both [SECONDS]        default: 3 seconds
//
// Ranks of rank 0's host take no part. Prints the sum over all others in Gbit/s of payload, from the first frame until
// the last one is known to have arrived; both directions count. bench/link_rate.sh sets it beside iperf3.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/comm/mpi.hpp"

namespace {

using namespace cleave;

// Frames of this size, and so many of them under way to or from each rank.
constexpr std::int64_t kFrame = std::int64_t{4} << 20, kUnderWay = 4;
constexpr Seconds kNap{1e-3}, kPatience{60};
const SteadyClock clock_now;

// The first byte of a frame. name: says on which host a rank is; flow: the other side is to send data until asked; ask:
// how many bytes of data have come.
enum class Word : std::uint8_t { name, data, flow, ask, end };

comm::Frame say(Word word, std::int64_t bytes = comm::kHeaderBytes) {
  comm::Frame frame(bytes);
  std::memset(frame.data(), 0, comm::kHeaderBytes);
  *frame.data() = static_cast<std::byte>(word);
  return frame;
}

Word word_of(const comm::Frame& frame) { return static_cast<Word>(*frame.data()); }

// Keeps a few frames under way to each of `ranks`.
void feed(comm::Transport& transport, const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    while (transport.bytes_pending(rank) < kUnderWay * kFrame) transport.send(rank, say(Word::data, kFrame));
  }
}

void serve(comm::Transport& transport, const std::string& host) {
  std::int64_t bytes = 0;
  bool flowing = false;
  for (Seconds heard = clock_now.now(); clock_now.now() - heard < kPatience;) {
    if (flowing) feed(transport, {0});
    auto received = transport.wait(kNap);
    if (!received) continue;
    heard = clock_now.now();
    switch (word_of(received->frame)) {
      case Word::name: {
        comm::Frame answer = say(Word::name, comm::kHeaderBytes + static_cast<std::int64_t>(host.size()));
        std::memcpy(answer.data() + comm::kHeaderBytes, host.data(), host.size());
        transport.send(0, std::move(answer));
        break;
      }
      case Word::data: bytes += received->frame.size(); break;
      case Word::flow: flowing = true; break;
      case Word::ask: {
        flowing = false;
        comm::Frame answer = say(Word::ask);
        std::memcpy(answer.data() + sizeof bytes, &bytes, sizeof bytes);
        transport.send(0, std::move(answer));
        break;
      }
      case Word::end: return;
    }
  }
}

std::vector<int> ranks_elsewhere(comm::Transport& transport, const std::string& host) {
  std::vector<int> ranks;
  for (int rank = 1; rank < transport.size(); ++rank) {
    transport.send(rank, say(Word::name));
    auto received = transport.wait(kPatience);
    CLEAVE_ASSERT(received && received->source == rank, "rank {} does not answer", rank);
    const auto name = std::string_view(reinterpret_cast<const char*>(received->frame.data()),
                                       static_cast<std::size_t>(received->frame.size()))
                          .substr(comm::kHeaderBytes);
    if (name != host) ranks.push_back(rank);
  }
  return ranks;
}

// Bits a second, both directions together.
double measure(comm::Transport& transport, const std::vector<int>& ranks, bool out, bool back, Seconds at_least) {
  std::int64_t bytes = 0;
  const Seconds begin = clock_now.now();
  if (back) {
    for (const int rank : ranks) transport.send(rank, say(Word::flow));
  }
  while (clock_now.now() - begin < at_least) {
    if (out) feed(transport, ranks);
    if (const auto received = transport.wait(kNap)) bytes += received->frame.size();
  }
  for (const int rank : ranks) transport.send(rank, say(Word::ask));
  for (std::size_t answered = 0; answered < ranks.size();) {
    const auto received = transport.wait(kPatience);
    CLEAVE_ASSERT(received, "{} of {} ranks answered", answered, ranks.size());
    if (word_of(received->frame) == Word::ask) {
      std::int64_t there = 0;
      std::memcpy(&there, received->frame.data() + sizeof there, sizeof there);
      bytes += there;
      ++answered;
    } else {
      bytes += received->frame.size();
    }
  }
  return 8 * static_cast<double>(bytes) / (clock_now.now() - begin).value();
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiSession session(argc, argv);
  const std::string way = argc > 1 ? argv[1] : "";
  const Seconds at_least(argc > 2 ? std::atof(argv[2]) : 3);
  const bool out = way == "out" || way == "both", back = way == "back" || way == "both";
  if (!out && !back) {
    if (session.rank() == 0) fmt::print(stderr, "usage: link_bench out|back|both [SECONDS]\n");
    return 2;
  }
  const auto transport = comm::make_mpi_transport(session, {.shared_memory = false});
  if (session.rank() == 0) {
    const std::vector<int> ranks = ranks_elsewhere(*transport, session.host());
    CLEAVE_ASSERT(!ranks.empty(), "{} ranks, all on {}", session.size(), session.host());
    fmt::print("{:.4f} Gbit/s {} with {} ranks of other hosts\n", measure(*transport, ranks, out, back, at_least) / 1e9,
               way, ranks.size());
    for (int rank = 1; rank < session.size(); ++rank) transport->send(rank, say(Word::end));
  } else {
    serve(*transport, session.host());
  }
  CLEAVE_ASSERT(transport->close(kPatience), "rank {}: messages are left", session.rank());
}
