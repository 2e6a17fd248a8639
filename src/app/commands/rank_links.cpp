// Orders are frames whose first byte says what to do; an answer that says something is JSON.
#include "commands/rank_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm_kernels.hpp"

namespace cleave::app {

namespace {

using nlohmann::json;

constexpr int kRoundTrips = 200, kTrials = 3;
// A trial sends so many messages; a message is as large as takes this long, so that slow links take no minutes.
constexpr int kMessages = 8, kUnderWay = 3;
constexpr Seconds kMessageTime{0.1};
constexpr std::int64_t kLeastMessage = std::int64_t{64} << 10, kMostMessage = std::int64_t{16} << 20;
// Others are measured meanwhile, one after the other.
constexpr Seconds kAnswerLimit{60}, kSilenceLimit{600};
constexpr std::size_t kLongestName = 256;  // of a host, of its processor, of kernels

enum class Order : std::uint8_t { echo, acknowledge, drop, give, describe, measure, leave };

comm::Frame order(Order what, std::int64_t bytes = comm::kHeaderBytes) {
  comm::Frame frame(bytes);
  std::memset(frame.data(), 0, static_cast<std::size_t>(bytes));
  *frame.data() = static_cast<std::byte>(what);
  return frame;
}

// Where Order::give says how large its messages are to be.
constexpr std::size_t kSizeAt = 8;

comm::Frame frame_of(std::string_view text) {
  comm::Frame frame(static_cast<std::int64_t>(text.size()));
  std::memcpy(frame.data(), text.data(), text.size());
  return frame;
}

// The server's side of one rank's orders.
class Peer {
 public:
  Peer(comm::Transport& transport, int rank) : transport_(transport), rank_(rank) {}

  void send(comm::Frame frame) { transport_.send(rank_, std::move(frame)); }

  comm::Frame answer() {
    for (const Seconds begin = clock_.now(); clock_.now() - begin < kAnswerLimit;) {
      auto received = transport_.wait(Seconds(1));
      if (received && received->source == rank_) return std::move(received->frame);
      if (!received && transport_.gone(rank_)) throw EnvironmentError("calibrate", place(), "it is gone");
    }
    throw EnvironmentError("calibrate", place(), "no answer");
  }

  json answer_to(Order what) {
    send(order(what));
    const comm::Frame said = answer();
    const json parsed = json::parse(reinterpret_cast<const char*>(said.data()),
                                    reinterpret_cast<const char*>(said.data()) + said.size(), nullptr, false);
    if (!parsed.is_object()) throw EnvironmentError("calibrate", place(), "an answer that is none");
    return parsed;
  }

  RankLink measure() {
    RankLink link{.rank = rank_, .host = {}, .latency = {}, .down = {}, .up = {}, .both = {}};
    std::array<Seconds, kRoundTrips> trips;
    for (Seconds& trip : trips) trip = time_of([&] { round_trip(Order::echo, comm::kHeaderBytes); });
    std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
    const Seconds there_and_back = trips[kRoundTrips / 2];
    link.latency = there_and_back / 2;

    // Twice as much until it takes long enough; that also brings the connection to its rate.
    std::int64_t bytes = kLeastMessage;
    while (bytes < kMostMessage &&
           time_of([&] { round_trip(Order::acknowledge, bytes); }) - there_and_back < kMessageTime)
      bytes *= 2;
    const auto rate = [&](const auto& transfers) {
      Seconds least(1e9);
      for (int i = 0; i < kTrials; ++i) least = std::min(least, time_of(transfers));
      // Of the last message the way is counted, and the word of it: neither says anything of the rate.
      const Seconds moving = std::max(least - there_and_back, least / 2);
      return BytesPerSecond(static_cast<double>(kMessages * bytes) / moving.value());
    };
    link.down = rate([&] {
      for (int i = 1; i < kMessages; ++i) send(order(Order::drop, bytes));
      round_trip(Order::acknowledge, bytes);
    });
    link.up = rate([&] {
      comm::Frame wanted = order(Order::give);
      std::memcpy(wanted.data() + kSizeAt, &bytes, sizeof bytes);
      send(std::move(wanted));
      for (int i = 0; i < kMessages; ++i) (void)answer();
    });
    link.both = rate([&] {
      int sent = 0;
      for (int back = 0; back < kMessages; ++back) {
        for (; sent < std::min(kMessages, back + kUnderWay); ++sent) send(order(Order::echo, bytes));
        (void)answer();
      }
    });
    return link;
  }

 private:
  [[nodiscard]] std::string place() const { return fmt::format("rank {}", rank_); }

  void round_trip(Order what, std::int64_t bytes) {
    send(order(what, bytes));
    (void)answer();
  }

  template <class Work>
  Seconds time_of(const Work& work) {
    const Seconds begin = clock_.now();
    work();
    return clock_.now() - begin;
  }

  comm::Transport& transport_;
  int rank_;
  SteadyClock clock_;
};

// Names of hosts may be any bytes.
std::string text_of(const json& said) { return said.dump(-1, ' ', false, json::error_handler_t::replace); }

json description_of(const RunHost& host) {
  return {{"host", host.name}, {"processor", host.processor}, {"kernels", host.kernels}, {"supported", host.supported}};
}

json figures_of(const HostSpeed& speed) {
  return {{"cores", speed.cores},
          {"core", speed.core.value()},
          {"all", speed.all.value()},
          {"memory", speed.memory.value()},
          {"memory_all", speed.memory_all.value()}};
}

// It goes into comments and quotes of YAML.
std::string name_in(const json& said, const char* key) {
  std::string name = said.at(key).get<std::string>().substr(0, kLongestName);
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '"' || c == '\\') c = '?';
  }
  return name;
}

RunHost read_description(const json& said) {
  RunHost host;
  host.name = name_in(said, "host");
  host.processor = name_in(said, "processor");
  host.kernels = name_in(said, "kernels");
  host.supported = said.at("supported").get<std::vector<std::string>>();
  return host;
}

HostSpeed read_figures(const json& said) {
  HostSpeed speed;
  speed.cores = said.at("cores").get<int>();
  speed.core = FlopsPerSecond(said.at("core").get<double>());
  speed.all = FlopsPerSecond(said.at("all").get<double>());
  speed.memory = BytesPerSecond(said.at("memory").get<double>());
  speed.memory_all = BytesPerSecond(said.at("memory_all").get<double>());
  return speed;
}

RankSurvey survey(comm::Transport& transport, RunHost own) {
  RankSurvey survey;
  own.ranks = {0};
  own.speed = measure_host();
  survey.hosts.push_back(std::move(own));
  for (int rank = 1; rank < transport.size(); ++rank) {
    Peer peer(transport, rank);
    RunHost said = read_description(peer.answer_to(Order::describe));
    const auto known = std::ranges::find(survey.hosts, said.name, &RunHost::name);
    RunHost& host = known != survey.hosts.end() ? *known : survey.hosts.emplace_back(std::move(said));
    if (host.ranks.empty()) host.speed = read_figures(peer.answer_to(Order::measure));
    host.ranks.push_back(rank);
    survey.links.push_back(peer.measure());
    survey.links.back().host = host.name;
  }
  return survey;
}

}  // namespace

RunHost describe_this_host(std::string name) {
  RunHost host{
      .name = std::move(name), .processor = processor_name(), .kernels = {}, .supported = {}, .ranks = {}, .speed = {}};
  host.kernels = kernels::name_of(kernels::best_gemm_kernels());
  for (const kernels::GemmKernels one : kernels::all_gemm_kernels()) {
    if (kernels::is_usable(one)) host.supported.emplace_back(kernels::name_of(one));
  }
  return host;
}

RankSurvey survey_ranks(comm::Transport& transport, RunHost own) {
  const auto let_go = [&] {
    for (int rank = 1; rank < transport.size(); ++rank) transport.send(rank, order(Order::leave));
  };
  try {
    RankSurvey found = survey(transport, std::move(own));
    let_go();
    return found;
  } catch (const json::exception& error) {
    let_go();
    throw EnvironmentError("calibrate", "a rank's answer", error.what());
  } catch (...) {
    let_go();  // the others would wait until they take the server for gone
    throw;
  }
}

void answer_until_told(comm::Transport& transport, const std::string& host) {
  SteadyClock clock;
  Seconds heard = clock.now();
  while (clock.now() - heard < kSilenceLimit && !transport.gone(0)) {
    auto received = transport.wait(Seconds(1));
    if (!received || received->source != 0 || received->frame.size() < comm::kHeaderBytes) continue;
    comm::Frame frame = std::move(received->frame);
    switch (static_cast<Order>(*frame.data())) {
      case Order::echo: transport.send(0, std::move(frame)); break;
      case Order::acknowledge: transport.send(0, order(Order::acknowledge)); break;
      case Order::drop: break;
      case Order::give: {
        std::int64_t bytes = 0;
        std::memcpy(&bytes, frame.data() + kSizeAt, sizeof bytes);
        bytes = std::clamp(bytes, comm::kHeaderBytes, kMostMessage);
        for (int i = 0; i < kMessages; ++i) transport.send(0, order(Order::give, bytes));
        break;
      }
      case Order::describe: transport.send(0, frame_of(text_of(description_of(describe_this_host(host))))); break;
      case Order::measure: transport.send(0, frame_of(text_of(figures_of(measure_host())))); break;
      case Order::leave: return;
    }
    heard = clock.now();
  }
}

}  // namespace cleave::app
