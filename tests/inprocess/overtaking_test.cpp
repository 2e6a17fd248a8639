// Answers that are lost, or come in another order than they were asked for, as they may wherever no emulated clock
// orders them: the same bits, nobody accused, and no lie unseen.
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "meddling.hpp"
#include "run.hpp"
#include "support/cases.hpp"
#include "support/draw.hpp"

namespace cleave::testing_run {
namespace {

using comm::StageErrand;
using testing_support::all_or_few;
using testing_support::Draw;

/// Two devices, which send their sums of a wide model in several messages.
Setting wide() {
  Setting s = small_setting();
  s.model.d_model = 512;
  s.model.d_ff = 2048;
  s.steps = 1;
  s = in_stages(s, alike_devices(2), 1);
  s.clock = server::ClockMode::off;
  s.patience = Seconds(1);
  for (fleet::DeviceProfile& device : s.devices) {
    device.memory = Bytes(1 << 30);
    device.latency = Seconds(0);  // or sums would go in larger messages
  }
  return s;
}

bool is_part_of_sums(const comm::Header& header) {
  return answers(header, StageErrand::send_sums) && header.stage_task.result_bytes > 4'000'000;
}

// The first of an owner's messages of sums is lost, and later ones arrive: only those count as there.
TEST(Overtaking, OfSumsOnlyThoseThatArrivedCount) {
  std::int64_t lost = 0;
  const Setting s = with_deeds(wide(), [&](const comm::Header& header) {
    return is_part_of_sums(header) && lost++ == 0 ? Deed::lose : Deed::pass;
  });
  const Outcome outcome = train(s);
  EXPECT_GT(lost, 1);
  EXPECT_GT(outcome.lost, 0);
  EXPECT_EQ(outcome.hash, bits_in_tiles(s));
}

// What arrived of the sums of an owner that was then lost is compared, too.
TEST(Overtaking, SumsThatArrivedBeforeALossAreCompared) {
  for (const bool lies : {false, true}) {
    std::int64_t parts = 0;
    Setting s = with_deeds(wide(), [&](const comm::Header& header) {
      if (!is_part_of_sums(header)) return Deed::pass;
      ++parts;
      return parts == 2 ? Deed::lose : parts == 1 && lies ? Deed::spoil : Deed::pass;
    });
    s.verification = {.mode = server::VerifyMode::quorum, .fraction = 1, .seed = 3};
    const Outcome outcome = train(s);
    EXPECT_GT(parts, 2);
    EXPECT_GT(outcome.lost, 0);
    EXPECT_EQ(outcome.hash, bits_in_tiles(s)) << lies;
    EXPECT_EQ(outcome.distrusted.size(), lies ? 1U : 0U);
  }
}

/// Three devices through which sequences pass in two chunks.
Setting in_two_chunks() {
  Setting s = in_stages(small_setting(), alike_devices(3), 1);
  s.model.seq_len = s.model.max_pos = 130;
  s.chunk_tokens = 128;
  s.clock = server::ClockMode::off;
  s.steps = 1;
  return s;
}

/// What becomes of the answers of a sequence's first visit forward, or backward: to the chunk that is made first, and
/// to the one after it.
struct Visited {
  StageErrand errand;
  Deed to_first, to_second;
  std::int32_t stage = -1;  // of the visit
  std::int64_t seen = 0;

  Deed operator()(const comm::Header& header) {
    if (!answers(header, errand) || header.stage_task.sequence != 0) return Deed::pass;
    if (stage < 0) stage = header.stage_task.stage;
    if (header.stage_task.stage != stage || seen == 2) return Deed::pass;
    return ++seen == 1 ? to_first : to_second;
  }
};

// The server makes what comes before the chunk that was refused, too, and finds that it can be made.
TEST(Overtaking, ARefusalAheadOfEarlierAnswersEndsNoRun) {
  for (const StageErrand errand : {StageErrand::forward, StageErrand::backward}) {
    Visited visited{errand, Deed::hold, Deed::refuse};
    const Setting s = with_deeds(in_two_chunks(), std::ref(visited));
    const Outcome outcome = train(s);
    EXPECT_EQ(visited.seen, 2);
    EXPECT_EQ(outcome.rejected, 1);
    EXPECT_EQ(outcome.distrusted.size(), 1U);
    EXPECT_EQ(outcome.hash, bits_in_tiles(s));
  }
}

// A visit is audited once all of its answers are there.
TEST(Overtaking, VisitsAreAuditedWhoseLastAnswerCameFirst) {
  for (const StageErrand errand : {StageErrand::forward, StageErrand::backward}) {
    for (const bool lies : {false, true}) {
      Visited visited{errand, lies ? Deed::hold_spoiled : Deed::hold, Deed::pass};
      Setting s = with_deeds(in_two_chunks(), std::ref(visited));
      s.verification = {.mode = server::VerifyMode::audit, .fraction = 1};
      const Outcome outcome = train(s);
      EXPECT_GE(visited.seen, 2);
      EXPECT_EQ(outcome.distrusted.size(), lies ? 1U : 0U);
      EXPECT_EQ(outcome.hash, bits_in_tiles(s)) << lies;
    }
  }
}

// A device answers a chunk wrongly and leaves; the rest of the visit is another's. Whoever answers last is not the
// liar, and nothing may be updated before the step is given up.
TEST(Overtaking, NothingIsUpdatedOnceADeviceThatLeftIsFoundOut) {
  Setting calm = in_stages(small_setting(), alike_devices(3), 1);
  calm.steps = 1;
  calm.model.seq_len = calm.model.max_pos = 520;  // five chunks
  calm.verification = {.mode = server::VerifyMode::audit, .fraction = 1};
  const Outcome honest = train(calm);
  std::int64_t found = 0;
  for (int moment = 0; moment < 60; ++moment) {
    Setting s = calm;
    const DeviceId liar(moment % 3);
    s.churn = {testing_run::liar(liar.value, 0.2, fleet::InjectedFaultKind::element),
               {.at = honest.time * (0.9 / 60 * moment), .device = liar, .kind = fleet::ChurnKind::leave}};
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, honest.hash) << moment;
    found += std::ssize(outcome.distrusted);
  }
  EXPECT_GT(found, 5);
}

// Up to three deeds of any kind at any answers, in one stage or several, and whatever is looked at: the same bits, and
// nobody is accused but who lied or refused. Lies only where each answer is looked at. Returns whether anything was
// done.
bool holds_whatever_is_done(std::uint64_t seed) {
  using Mode = server::VerifyMode;
  Draw draw(seed, 17);
  const Mode modes[] = {Mode::off, Mode::audit, Mode::quorum};
  const Mode mode = draw.one_of(modes);
  Setting s = in_stages(draw.chance(0.5) ? small_setting() : Setting{}, alike_devices(4), 2);
  s.model.seq_len = s.model.max_pos = 130;
  s.chunk_tokens = 128;
  s.batch = 3;
  s.steps = 1;
  if (draw.chance(0.5)) set_memory(s, 700'000);  // of the wider model several stages
  s.clock = server::ClockMode::off;
  s.patience = Seconds(0.3);
  s.verification = {.mode = mode, .fraction = 1, .seed = seed};
  constexpr Deed kDeeds[] = {Deed::lose, Deed::hold, Deed::refuse, Deed::spoil, Deed::hold_spoiled};
  std::map<std::int64_t, Deed> deeds;  // by number of the answer
  for (std::int64_t left = draw.between(1, 3); left > 0; --left)
    deeds[draw.between(0, 59)] = kDeeds[draw.between(0, mode == Mode::off ? 2 : 4)];
  std::mutex one_at_a_time;  // of two ranks
  std::set<DeviceId> meddlers;
  std::int64_t answered = 0, done = 0;
  const Setting meddled = with_deeds(s, [&](const comm::Header& header) {
    const std::lock_guard lock(one_at_a_time);
    const auto found = deeds.find(answered++);
    if (found == deeds.end()) return Deed::pass;
    ++done;
    if (found->second != Deed::lose && found->second != Deed::hold) meddlers.insert(header.device);
    return found->second;
  });
  SCOPED_TRACE(testing::Message() << "setting " << seed << ": " << server::name_of(mode));
  try {
    const Outcome outcome = train(meddled);
    EXPECT_EQ(outcome.hash, bits_in_tiles(s));
    for (const DeviceId accused : outcome.distrusted) EXPECT_TRUE(meddlers.contains(accused));
  } catch (const std::exception& error) { ADD_FAILURE() << error.what(); }
  return done > 0;
}

TEST(Overtaking, AnyFewDeedsAtOnce) {
  testing_support::expect_of_drawn("CLEAVE_DEEDS", all_or_few(60, 8), 2, holds_whatever_is_done);
}

}  // namespace
}  // namespace cleave::testing_run
