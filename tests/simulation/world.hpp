// World: one story told to its end: the whole server (trainer, scheduler, fleet, exchange, executor) against ranks that
// do what the story says, in virtual time, in one thread.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run.hpp"
#include "story.hpp"
#include "virtual_network.hpp"
#include "virtual_rank.hpp"

namespace cleave::simulation {

/// Virtual seconds that a step may take, whatever anybody does: where nobody is left who answers, each of some sixty
/// operations and updates waits for an answer once or, before the breakers have opened, a few times.
inline constexpr double kLongestStep = 2 * 3600;
/// Bytes that the server may leave lying before a rank that does not read.
inline constexpr std::int64_t kMostUnread = std::int64_t{16} << 20;
/// Of a device that has not room for all stages and all sums at once.
inline constexpr std::int64_t kCramped = 60'000;
/// Of a canary: a process that ranks name as their own.
inline std::int64_t& named_process() {
  static std::int64_t pid = 1;
  return pid;
}

class Rank {
 public:
  /// `lied`: devices are added whose answers it sends with other numbers than they should have.
  Rank(VirtualNetwork& network, const Story& story, int rank, std::set<DeviceId>& lied)
      : network_(network),
        lied_(lied),
        rank_(rank),
        random_(story.seed, Purpose::test, static_cast<std::uint32_t>(100 + rank)) {
    for (const Act& act : story.acts) {
      if (act.rank != rank) continue;
      const std::int64_t times = story.sample && act.deed == Deed::lie ? act.amount : 1;
      for (std::int64_t i = 0; i < times; ++i) acts_.emplace(act.answer + i, act);
    }
    network.attach(rank, [this](comm::Frame frame) { take(std::move(frame)); });
    network.deliver(rank, VirtualRank::hello(named_process(), "simulated"));
  }

 private:
  Seconds soon() { return VirtualNetwork::kLatency * (1.0 + random_.uniform(draws_++)); }
  std::uint64_t below(std::uint64_t count) { return random_.below(draws_++, count); }

  void send(comm::Frame frame, Seconds delay) {
    if (network_.now() + delay < mute_until_) return;
    network_.deliver(rank_, std::move(frame), delay);
  }

  void take(comm::Frame frame) {
    for (comm::Frame& answer : honest_.answer(std::move(frame))) {
      const auto header = comm::decode_header(answer.bytes().first(comm::kHeaderBytes), answer.size());
      if (!header || (header->kind != comm::Kind::result && header->kind != comm::Kind::digest)) {
        send(std::move(answer), soon());
        continue;
      }
      std::optional<comm::Frame> left = std::move(answer);
      const auto [first, last] = acts_.equal_range(answers_++);
      for (auto act = first; act != last && left; ++act) left = act_on(act->second, *header, std::move(*left));
      if (left) send(std::move(*left), soon());
    }
  }

  // What is left of an answer.
  std::optional<comm::Frame> act_on(const Act& act, const comm::Header& header, comm::Frame answer) {
    const Seconds a_while(static_cast<double>(act.amount));
    switch (act.deed) {
      case Deed::withhold: return std::nullopt;
      case Deed::delay: send(std::move(answer), a_while * 2.0); return std::nullopt;
      case Deed::repeat:
        for (std::int64_t i = 1; i <= act.amount; ++i) send(answer.copy(), Seconds(0.7 * static_cast<double>(i)));
        break;
      case Deed::corrupt:
        answer.data()[below(static_cast<std::uint64_t>(answer.size()))] ^= static_cast<std::byte>(1U << below(8));
        break;
      case Deed::truncate: {
        comm::Frame shorter(static_cast<std::int64_t>(below(static_cast<std::uint64_t>(answer.size()))));
        std::copy_n(answer.data(), shorter.size(), shorter.data());
        return shorter;
      }
      case Deed::lie: lied_.insert(header.device); return forged(header, answer, true);
      case Deed::rename: {
        comm::Header other = header;
        lied_.insert(header.device);
        other.tasklet =
            TaskletId(std::max<std::int64_t>(0, header.tasklet.value - 3 + static_cast<std::int64_t>(below(7))));
        return forged(other, answer, false);
      }
      case Deed::redirect: {
        comm::Header other = header;
        other.device = DeviceId(header.device.value + 1);
        return forged(other, answer, false);
      }
      case Deed::reshape: {
        comm::Header other = header;
        if (other.work != comm::Work::gemm || !other.part.whole()) return std::nullopt;
        other.gemm.m += 1;
        return forged(other, answer, false);
      }
      case Deed::refuse:
        return comm::encode_refused(header.tasklet, header.device, static_cast<comm::Reason>(1 + below(5)), "no");
      case Deed::complain:
        for (std::int64_t i = 0; i < act.amount; ++i) {
          send(comm::encode_refused(TaskletId(static_cast<std::int64_t>(below(500))), header.device,
                                    comm::Reason::malformed, "damaged"),
               soon());
        }
        break;
      case Deed::rubbish:
        for (std::int64_t i = 0; i < act.amount; ++i) {
          comm::Frame frame(static_cast<std::int64_t>(below(400)));
          for (std::int64_t b = 0; b < frame.size(); ++b) frame.data()[b] = static_cast<std::byte>(below(256));
          send(std::move(frame), soon());
        }
        break;
      case Deed::presume: presume(); break;
      case Deed::flood: flood(network_.now() + Seconds(0.02 * static_cast<double>(act.amount))); break;
      case Deed::deaf:
        network_.set_reading(rank_, false);
        network_.after(a_while, [this] { network_.set_reading(rank_, true); });
        break;
      case Deed::mute: mute_until_ = std::max(mute_until_, network_.now() + a_while); break;
      case Deed::die: network_.kill(rank_); return std::nullopt;
    }
    return answer;
  }

  comm::Frame forged(const comm::Header& header, const comm::Frame& answer, bool lies) {
    if (header.kind == comm::Kind::digest) {
      SipTag digest = comm::tag_of(answer);
      if (lies) digest[below(digest.size())] ^= std::byte{1};
      comm::Header asked = header;
      asked.digest = true;
      return comm::encode_digest(asked, digest, Seconds(1e-4), Seconds(1e-4));
    }
    const auto view = comm::decode_result(answer);
    if (!view) return answer.copy();
    comm::ResultDraft draft = comm::begin_result(header);
    for (std::size_t i = 0; i < draft.outputs.size(); ++i) {
      const std::span<const std::byte> from = view->outputs[i];
      const std::span<std::byte> to = draft.outputs[i];
      std::fill(to.begin(), to.end(), std::byte{0});
      std::copy_n(from.begin(), std::min(from.size(), to.size()), to.begin());
      // One number far above what rounding may do: smaller errors may pass where results have 16 bits
      // (docs/security.md). 1000 in fp32 and in bf16 alike; an integer's highest bits.
      if (lies && i == 0 && !to.empty()) {
        const auto size = static_cast<std::size_t>(size_of(header.output));
        const std::size_t end = (1 + below(to.size() / size)) * size;
        to[end - 1] = std::byte{0x44};
        to[end - 2] = std::byte{0x7A};
      }
    }
    return comm::seal(std::move(draft));
  }

  // Kinds that only the start, the end or the server has.
  void presume() {
    switch (below(7)) {
      case 0: return send(VirtualRank::hello(named_process(), "somebody else"), soon());
      case 1: return send(comm::encode_ready(), soon());
      case 2: return send(comm::encode_goodbye(), soon());
      case 3: return send(comm::encode_refusal("I will not"), soon());
      case 4: return send(comm::encode_release(TaskletId(1), DeviceId(0)), soon());
      case 5: return send(comm::encode_ping(5), soon());
      default: return send(comm::encode(comm::Welcome{}), soon());
    }
  }

  void flood(Seconds until) {
    if (network_.now() >= until || network_.gone(rank_)) return;
    network_.deliver(rank_, comm::encode_pong(1), Seconds(0));
    network_.after(VirtualNetwork::kLook, [this, until] { flood(until); });
  }

  VirtualNetwork& network_;
  std::set<DeviceId>& lied_;
  int rank_;
  Random random_;
  std::uint64_t draws_ = 0;
  std::multimap<std::int64_t, Act> acts_;
  VirtualRank honest_;
  std::int64_t answers_ = 0;
  Seconds mute_until_{0};
};

/// What a story came to.
struct Ending {
  std::string fault;  // empty: all is well
  Seconds longest_step;
  std::int64_t lost = 0, rejected = 0;
  std::int64_t witnesses = 0;
  std::int64_t recomputed = 0;  // blocks because of which a step was run again
  bool slipped = false;         // a device may have lied in a step that ended before it was found out
};

inline int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  return count;
}

inline testing_run::Setting setting_of(const Story& story) {
  testing_run::Setting s = testing_run::small_setting();
  s.wire = story.sixteen_bits ? DType::bf16 : DType::f32;
  s.clock = story.live ? server::ClockMode::off : server::ClockMode::virtual_time;
  s.device_ranks = story.ranks;
  s.devices = testing_run::unlike_devices(story.devices);
  if (story.parts) s.parts = testing_run::kSmallParts;
  if (story.stages) s.layout = sched::Layout::stages;
  if (story.cramped) testing_run::set_memory(s, kCramped);
  s.verification = {
      .mode = story.audit ? server::VerifyMode::audit : server::VerifyMode::all, .fraction = 1.0, .seed = story.seed};
  if (story.quorum) s.verification = {.mode = server::VerifyMode::quorum, .fraction = 1.0, .seed = story.seed};
  if (story.sample) s.verification = {.mode = server::VerifyMode::sample, .fraction = 0.5, .seed = story.seed};
  return s;
}

/// Of the parameters after so many steps.
inline std::uint64_t honest_hash(DType wire, std::int64_t steps) {
  static std::map<std::pair<DType, std::int64_t>, std::uint64_t> known;
  const auto found = known.find({wire, steps});
  if (found != known.end()) return found->second;
  testing_run::Setting s = testing_run::small_setting();
  s.wire = wire;
  s.steps = steps;
  return known[{wire, steps}] = testing_run::train(s).hash;
}

inline Ending tell(const Story& story) {
  const testing_run::Setting s = setting_of(story);
  for (std::int64_t steps = 1; steps <= s.steps; ++steps) (void)honest_hash(s.wire, steps);
  const int descriptors = open_descriptors();
  Ending ending;
  const auto fault = [&](const std::string& text) {
    if (ending.fault.empty()) ending.fault = text;
  };
  try {
    ManualClock clock;
    VirtualNetwork network(clock, 1 + s.device_ranks);
    std::vector<std::unique_ptr<Rank>> ranks;
    std::set<DeviceId> lied;  // in this step
    for (int rank = 1; rank <= s.device_ranks; ++rank) {
      ranks.push_back(std::make_unique<Rank>(network, story, rank, lied));
    }
    server::TrainerOptions options = testing_run::options_of(s);
    options.fleet.real_time = &clock;
    server::ParameterStore parameters = testing_run::initial_parameters(s);
    server::Trainer trainer(parameters, options, &network);
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const Seconds begun = clock.now();
      lied.clear();
      const server::StepResult result = trainer.step(step, testing_run::batch_of(s, step));
      ending.longest_step = std::max(ending.longest_step, clock.now() - begun);
      ending.lost += result.report.lost;
      ending.rejected += result.report.rejected;
      ending.witnesses += result.report.witnesses;
      ending.recomputed += static_cast<std::int64_t>(result.recomputed.size());
      // Of a sample no more is promised than this: who is found out leaves nothing in the step.
      if (story.sample) {
        for (const DeviceId device : trainer.distrusted()) lied.erase(device);
        ending.slipped = ending.slipped || !lied.empty();
      }
      if (!ending.slipped && parameters.hash() != honest_hash(s.wire, step + 1)) fault("other bits");
    }
    const Seconds begun = clock.now();
    for (const server::RankInfo& rank : trainer.say_goodbye(Seconds(30))) {
      if (network.process(rank.rank).descriptor >= 0) fault("a process would be killed that nobody but a rank named");
    }
    if (clock.now() - begun > Seconds(31)) fault("the goodbye takes for ever");
    std::set<int> wrong;
    for (const Act& act : story.acts) {
      if (is_wrong(act.deed)) wrong.insert(act.rank);
    }
    for (const DeviceId device : trainer.distrusted()) {
      const int rank = 1 + static_cast<int>(device.value % s.device_ranks);
      if (!wrong.contains(rank)) fault(fmt::format("device {} is left out, and did nothing wrong", device.value));
    }
    if (network.most_unread() > kMostUnread) fault(fmt::format("{} bytes unread", network.most_unread()));
  } catch (const std::exception& error) { fault(error.what()); }
  if (ending.longest_step.value() > kLongestStep) fault(fmt::format("a step of {} s", ending.longest_step.value()));
  if (open_descriptors() != descriptors) fault("descriptors are left open");
  return ending;
}

/// The same fault's shortest story: acts are left out, one after another, as long as it still ends badly.
inline Story minimised(Story story) {
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (std::size_t i = 0; i < story.acts.size(); ++i) {
      Story less = story;
      less.acts.erase(less.acts.begin() + static_cast<std::ptrdiff_t>(i));
      if (tell(less).fault.empty()) continue;
      story = std::move(less);
      shorter = true;
      break;
    }
  }
  return story;
}

}  // namespace cleave::simulation
