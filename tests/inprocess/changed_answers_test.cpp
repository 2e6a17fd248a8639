// A rank that computes as it should and changes what it says on the way out: how long it took, how many rows of its
// sums were promoted, sums and gradients that are far too large. What is false is noticed where it can be, counts for
// nothing else, and nobody else is accused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/sched/observer.hpp"
#include "head_in_parts.hpp"
#include "meddling.hpp"
#include "run.hpp"
#include "short_memory.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

using comm::StageErrand;

/// What becomes of an answer; true: it is another one now.
struct Change {
  std::function<bool(comm::Header&)> header = [](comm::Header&) { return false; };
  std::function<bool(const comm::Header&, std::span<std::byte>, bool partial)> numbers =
      [](const comm::Header&, std::span<std::byte>, bool) { return false; };
};

/// Passes everything on, but the answers of one device as they are changed.
class Changing final : public PassingOn {
 public:
  Changing(std::shared_ptr<comm::Transport> inner, DeviceId device, Change change, std::int64_t& changed)
      : PassingOn(std::move(inner)), device_(device), change_(std::move(change)), changed_(changed) {}
  void send(int dest, comm::Frame frame) override {
    frame = comm::seal_payload(std::move(frame));
    const auto result = comm::decode_result(frame);
    if (!result || result->header.device != device_) return PassingOn::send(dest, std::move(frame));
    comm::Header header = result->header;
    bool changed = change_.header(header);
    comm::ResultDraft draft = comm::begin_result(header);
    for (std::size_t i = 0; i < draft.outputs.size(); ++i)
      std::ranges::copy(result->outputs[i], draft.outputs[i].begin());
    changed |= change_.numbers(header, draft.outputs[0], partial_.contains(header.tasklet));
    changed_ += changed ? 1 : 0;
    PassingOn::send(dest, comm::seal(std::move(draft)));
  }
  [[nodiscard]] std::optional<comm::Received> poll() override { return noted(PassingOn::poll()); }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override { return noted(PassingOn::wait(at_most)); }

 private:
  // Whether sums are wanted as integers says the task alone.
  std::optional<comm::Received> noted(std::optional<comm::Received> received) {
    if (!received) return received;
    const auto task = comm::decode_task(received->frame);
    if (!task || task->header.work != comm::Work::stage || task->header.stage_task.errand != StageErrand::send_sums)
      return received;
    std::int64_t partial = 0;
    std::memcpy(&partial, task->operands[0].data(), sizeof partial);
    if (partial != 0) partial_.insert(task->header.tasklet);
    return received;
  }

  DeviceId device_;
  Change change_;
  std::int64_t& changed_;
  std::set<TaskletId> partial_;
};

/// When the last use of any resource ends.
struct Latest final : sched::Observer {
  Seconds end{0};
  void begin(const model::StepGraph& /*graph*/, Seconds /*at*/) override {}
  void span(const sched::Span& span) override { end = std::max(end, span.end); }
  void settled(TaskletId /*tasklet*/, Seconds /*at*/, bool /*lost*/) override {}
  void changed(DeviceId /*device*/, sched::DeviceChange /*change*/, Seconds /*at*/, double /*factor*/) override {}
};

struct Ended {
  std::uint64_t hash = 0;
  std::vector<DeviceId> distrusted;
  server::VerificationReport verification;
  std::int64_t changed = 0, promoted = 0;
  Seconds latest;
};

/// Trains where a device's answers are changed.
Ended train_with(const Setting& s, DeviceId device, const Change& change) {
  Ended ended;
  Latest latest;
  server::TrainerOptions options = options_of(s);
  options.fleet.observer = &latest;
  comm::LoopbackHub hub(1 + s.device_ranks);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank <= s.device_ranks; ++rank) {
    hosts.emplace_back([&, endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank)),
                        its = rank == 1 + static_cast<int>(device.value) % s.device_ranks] {
      if (its) {
        Changing changing(endpoint, device, change, ended.changed);
        (void)device::run_device_host(changing);
      } else {
        (void)device::run_device_host(*endpoint);
      }
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, server.get());
    const auto leave = [&] {
      (void)trainer.say_goodbye(Seconds(10));
      for (std::thread& host : hosts) host.join();
    };
    try {
      for (std::int64_t step = 0; step < s.steps; ++step)
        ended.promoted += trainer.step(step, batch_of(s, step)).promoted_rows.value_or(0);
    } catch (...) {
      leave();
      throw;
    }
    ended.distrusted = trainer.distrusted();
    ended.verification = trainer.verification();
    leave();
  }
  ended.hash = parameters.hash();
  ended.latest = latest.end;
  return ended;
}

constexpr DeviceId kFalse(1);
constexpr Seconds kSaid{1e9};  // the most that a message may say

// It can have taken no longer than it was waited for; what it says else would be most of what is counted and drawn.
TEST(ChangedAnswers, NoDeviceTakesLongerThanItWasWaitedFor) {
  constexpr Seconds kMost{1e6};
  const Change boasts{.header = [](comm::Header& header) {
    header.compute = header.computed = kSaid;
    return true;
  }};
  for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
    for (const sched::Layout layout : {sched::Layout::tiles, sched::Layout::stages}) {
      Setting s = in_stages(small_setting(), alike_devices(4), 2);
      s.layout = layout;
      s.clock = clock;
      const Ended ended = train_with(s, kFalse, boasts);
      EXPECT_GT(ended.changed, 0);
      EXPECT_EQ(ended.hash, honest_bits(s));
      EXPECT_TRUE(ended.distrusted.empty());
      EXPECT_LT(ended.verification.device_time, kMost);
      EXPECT_LT(ended.latest, kMost);
    }
  }
}

// More rows than there are cannot have been promoted.
TEST(ChangedAnswers, NoMoreRowsArePromotedThanThereAre) {
  const Change counts_wrongly{.header = [](comm::Header& header) {
    if (header.work != comm::Work::stage || header.stage_task.errand != StageErrand::send_sums) return false;
    header.stage_task.rows = 1 << 30;
    return true;
  }};
  const Setting s = with_wire(in_stages(small_setting(), alike_devices(4), 2), DType::bf16);
  const Ended ended = train_with(s, kFalse, counts_wrongly);
  EXPECT_GT(ended.changed, 0);
  EXPECT_EQ(ended.hash, honest_bits(s));
  EXPECT_EQ(ended.distrusted, std::vector{kFalse});
  EXPECT_LT(ended.promoted, 1 << 20);
}

// Also where nothing is verified (docs/security.md, "The wire").
TEST(ChangedAnswers, PartialSumsBeyondWhatAnHonestOneCanBeAreRefused) {
  for (const Wire& wire : kSomeWires) {
    const Change huge_sums{.numbers = [](const comm::Header&, std::span<std::byte> bytes, bool partial) {
      if (!partial) return false;
      std::memset(bytes.data(), 0, sizeof(std::int64_t));
      bytes[sizeof(std::int32_t) - 1] = bytes[sizeof(std::int64_t) - 1] = std::byte{0x80};  // the lowest integer
      return true;
    }};
    const Setting s = with_wire(in_stages(small_setting(), alike_devices(4), 2), wire);
    const Ended ended = train_with(s, kFalse, huge_sums);
    EXPECT_GT(ended.changed, 0) << name_of(wire);
    EXPECT_EQ(ended.hash, honest_bits(s)) << name_of(wire);
    EXPECT_EQ(ended.distrusted, std::vector{kFalse}) << name_of(wire);
  }
}

/// Gradients of norms, which come last: finite, and so large that the training would have diverged.
Change huge_norms() {
  return {.numbers = [](const comm::Header& header, std::span<std::byte> bytes, bool) {
    if (header.work != comm::Work::stage || header.stage_task.errand != StageErrand::backward ||
        header.stage_task.row > 0 || bytes.empty())
      return false;
    const float huge = 1e30F;
    std::memcpy(bytes.data() + bytes.size() - sizeof huge, &huge, sizeof huge);
    return true;
  }};
}

/// With every n-th device as the liar; nobody else is ever accused, and some liar is found out.
void expect_only_the_liar_accused(const Setting& s, const Change& change, std::size_t every) {
  const std::uint64_t honest = honest_bits(s);
  std::int64_t found = 0;
  for (std::size_t i = 0; i < s.devices.size(); i += every) {
    const DeviceId liar = s.devices[i].id;
    const Ended ended = train_with(s, liar, change);
    for (const DeviceId accused : ended.distrusted) EXPECT_EQ(accused, liar) << "the liar is " << liar.value;
    EXPECT_EQ(ended.hash, honest) << liar.value;
    found += std::ssize(ended.distrusted);
  }
  EXPECT_GT(found, 0);
}

/// Several stages, whose owners have all sequences.
Setting with_whole_owners() {
  Setting s = in_stages(Setting{}, unlike_devices(4), 2);
  s.batch = 3;
  set_memory(s, 400'000);
  s.steps = 1;
  return s;
}

/// The largest numbers in place of `count`.
void make_huge(std::span<std::byte> bytes, std::int64_t count) {
  const float huge = std::numeric_limits<float>::max();
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * 4, &huge, sizeof huge);
}

// The gradient of a tied embedding has the sums of the head's owners, and what the embedding adds to them. Here that is
// not finite.
TEST(ChangedAnswers, OwnersOfAHeadAreNotAccusedOfWhatItsEmbeddingAdds) {
  const Setting s = with_whole_owners();
  const Change huge_rows{.numbers = [&s](const comm::Header& header, std::span<std::byte> bytes, bool) {
    if (header.work != comm::Work::stage || header.stage_task.errand != StageErrand::backward ||
        header.stage_task.stage > 0)
      return false;
    make_huge(bytes, header.stage_task.rows * s.model.d_model);
    return true;
  }};
  expect_only_the_liar_accused(s, huge_rows, 1);
}

// What they sent is known from what was added to it: one of them is found out beside the device whose dX was too large.
TEST(ChangedAnswers, OwnersOfAHeadAreFoundOutAfterItsEmbeddingHasAdded) {
  Setting s = with_whole_owners();
  s.model.seq_len = s.model.max_pos = 130;
  set_memory(s, 700'000);
  s.chunk_tokens = 128;  // norms' gradients come with the second answer
  s.one_token = true;
  s.device_ranks = 1;
  const std::optional<plan::StagePlan> plan = plan_of(s);
  ASSERT_TRUE(plan && !plan->has_tiles() && plan->stages.size() > 2);
  const auto head = static_cast<std::int32_t>(plan->stages.size()) - 1;
  std::optional<DeviceId> owner, other;
  const Outcome outcome = train(with_deeds(s, [&](const comm::Header& header) {
    if (answers(header, StageErrand::send_sums) && header.stage_task.stage == head && !owner) {
      owner = header.device;
      return Deed::spoil;
    }
    const bool of_bottom = answers(header, StageErrand::backward) && header.stage_task.stage == 0;
    if (!of_bottom || header.stage_task.row == 0 || header.device == owner) return Deed::pass;
    if (other && header.device != other) return Deed::pass;
    other = header.device;
    return Deed::huge;
  }));
  ASSERT_TRUE(owner && other);
  EXPECT_EQ(outcome.distrusted, (std::vector{std::min(*owner, *other), std::max(*owner, *other)}));
  EXPECT_EQ(outcome.hash, bits_in_tiles(s));
}

// The step's answers are recomputed once its gradients are put together: shares of dX that parts of a head returned
// have been added up and given up by then.
TEST(ChangedAnswers, PartsOfAHeadAreNotAccusedOfWhatAnotherSent) {
  Setting s = in_parts(with_vocabulary(), alike_devices(14), 2);
  s.steps = 1;
  expect_only_the_liar_accused(s, huge_norms(), all_or_few(1, 3));
}

}  // namespace
}  // namespace cleave::testing_run
