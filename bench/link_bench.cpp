// How fast large frames go between rank 0 and ranks of other hosts: out, back, or both at once.
//
//   mpirun ... build/release/bench/link_bench out|back|both [SECONDS]        default: 3 seconds
//
// Ranks of rank 0's host take no part. Prints the sum over all others in Gbit/s of payload; both directions count.
// Whoever receives counts, from its first frame on, for as long as was asked; nobody stops sending before everybody has
// counted. bench/link_rate.sh sets it beside iperf3.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/comm/mpi.hpp"

namespace {

using namespace cleave;

// Frames of this size, and so many of them under way to or from each rank.
constexpr std::int64_t kFrame = std::int64_t{1} << 20, kUnderWay = 8;
constexpr Seconds kNap{1e-3}, kPatience{60};
const SteadyClock clock_now;

// The first byte of a frame. name: says on which host a rank is; flow: the other side is to send data until told to
// stop; rate: how fast data came.
enum class Word : std::uint8_t { name, data, flow, rate, stop, end };

// How fast frames come, from the end of the first one on.
class Rate {
 public:
  explicit Rate(Seconds window) : window_(window) {}
  void count(std::int64_t bytes) {
    const Seconds now = clock_now.now();
    if (over()) return;
    if (first_.value() < 0) {
      first_ = now;
    } else {
      bytes_ += bytes;
    }
    last_ = now;
  }
  [[nodiscard]] bool over() const { return first_.value() >= 0 && last_ - first_ >= window_; }
  [[nodiscard]] double bits_a_second() const { return 8 * static_cast<double>(bytes_) / (last_ - first_).value(); }

 private:
  Seconds window_, first_{-1}, last_{-1};
  std::int64_t bytes_ = 0;
};

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

void serve(comm::Transport& transport, const std::string& host, Seconds window) {
  Rate rate(window);
  bool flowing = false, told = false;
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
      case Word::data: {
        rate.count(received->frame.size());
        if (!rate.over() || std::exchange(told, true)) break;
        comm::Frame answer = say(Word::rate);
        const double bits = rate.bits_a_second();
        std::memcpy(answer.data() + sizeof bits, &bits, sizeof bits);
        transport.send(0, std::move(answer));
        break;
      }
      case Word::flow: flowing = true; break;
      case Word::rate: break;
      case Word::stop: {
        flowing = false;
        transport.send(0, say(Word::stop));
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
double measure(comm::Transport& transport, const std::vector<int>& ranks, bool out, bool back, Seconds window) {
  std::vector<Rate> rates(static_cast<std::size_t>(transport.size()), Rate(window));
  std::size_t to_count = (out ? ranks.size() : 0) + (back ? ranks.size() : 0), stopped = 0;
  double sum = 0;
  const auto hear = [&](Seconds at_most) {
    const auto received = transport.wait(at_most);
    if (!received) return false;
    switch (word_of(received->frame)) {
      case Word::data: {
        Rate& rate = rates[static_cast<std::size_t>(received->source)];
        const bool was_over = rate.over();
        rate.count(received->frame.size());
        if (rate.over() && !was_over) {
          sum += rate.bits_a_second();
          --to_count;
        }
        break;
      }
      case Word::rate: {
        double bits = 0;
        std::memcpy(&bits, received->frame.data() + sizeof bits, sizeof bits);
        sum += bits;
        --to_count;
        break;
      }
      case Word::stop: ++stopped; break;
      default: break;
    }
    return true;
  };
  const Seconds begin = clock_now.now();
  if (back) {
    for (const int rank : ranks) transport.send(rank, say(Word::flow));
  }
  while (to_count > 0) {
    if (out) feed(transport, ranks);
    (void)hear(kNap);
    CLEAVE_ASSERT(clock_now.now() - begin < window + kPatience, "{} rates are missing", to_count);
  }
  for (const int rank : ranks) transport.send(rank, say(Word::stop));
  while (stopped < ranks.size()) {
    const bool heard = hear(kPatience);
    CLEAVE_ASSERT(heard, "{} of {} ranks stopped", stopped, ranks.size());
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiSession session(argc, argv);
  const std::string way = argc > 1 ? argv[1] : "";
  const Seconds window(argc > 2 ? std::atof(argv[2]) : 3);
  const bool out = way == "out" || way == "both", back = way == "back" || way == "both";
  if (!out && !back) {
    if (session.rank() == 0) fmt::print(stderr, "usage: link_bench out|back|both [SECONDS]\n");
    return 2;
  }
  const auto transport = comm::make_mpi_transport(session, {.shared_memory = false});
  if (session.rank() == 0) {
    const std::vector<int> ranks = ranks_elsewhere(*transport, session.host());
    CLEAVE_ASSERT(!ranks.empty(), "{} ranks, all on {}", session.size(), session.host());
    fmt::print("{:.4f} Gbit/s {} with {} ranks of other hosts\n", measure(*transport, ranks, out, back, window) / 1e9,
               way, ranks.size());
    for (int rank = 1; rank < session.size(); ++rank) transport->send(rank, say(Word::end));
  } else {
    serve(*transport, session.host(), window);
  }
  CLEAVE_ASSERT(transport->close(kPatience), "rank {}: messages are left", session.rank());
}
