// Settings drawn at random: whatever model, fleet, memory, layout, wire, checks and losses, the bits are those that the
// server computes alone, and nobody who is honest is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "churn_schedule.hpp"
#include "cleave/base/error.hpp"
#include "head_in_parts.hpp"
#include "run.hpp"
#include "support/cases.hpp"
#include "support/draw.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

using Mode = server::VerifyMode;
using testing_support::Draw, testing_support::expect_of_drawn;

constexpr std::uint32_t kStream = 3;

model::ModelConfig draw_model(Draw& draw) {
  model::ModelConfig model;
  model.family = draw.one_of(std::vector<std::string>{"gpt2", "opt", "llama"});
  model.n_layer = draw.between(1, 5);
  model.n_head = draw.one_of(std::vector<std::int64_t>{1, 2, 3, 4, 6});
  model.n_kv_head = model.n_head;
  if (model.family == "llama") {
    do { model.n_kv_head = draw.between(1, model.n_head); } while (model.n_head % model.n_kv_head != 0);
  }
  model.d_model = model.n_head * 2 * draw.between(1, 6);
  model.d_ff = draw.between(4, 6 * model.d_model);
  model.vocab_size = draw.chance(0.1) ? draw.between(2000, 4500) : draw.between(5, 300);
  model.seq_len = draw.chance(0.2) ? draw.between(100, 300) : draw.between(1, 50);
  model.max_pos = model.seq_len + draw.between(0, 5);
  model.tie_embeddings = model.family != "llama" || draw.chance(0.5);
  return model;
}

std::vector<fleet::DeviceProfile> draw_fleet(Draw& draw) {
  const auto memory = draw.scale(2e4, 8e6);
  const bool alike = draw.chance(0.5);
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t i = draw.between(0, 6); i >= 0; --i) {
    devices.push_back({.id = DeviceId(std::ssize(devices)),
                       .name = "drawn",
                       .compute = FlopsPerSecond(draw.scale(1e8, 1e11)),
                       .memory = Bytes(static_cast<std::int64_t>(memory * (alike ? 1 : draw.scale(0.5, 2)))),
                       .downlink = BytesPerSecond(draw.scale(1e6, 1e9)),
                       .uplink = BytesPerSecond(draw.scale(1e6, 3e8)),
                       .latency = Seconds(draw.chance(0.5) ? 0 : draw.scale(1e-6, 1e-2)),
                       .jitter = Seconds(0)});
  }
  return devices;
}

// `in_8_bits`: now and then between stages.
Setting draw_setting(std::uint64_t seed, bool in_8_bits) {
  Draw draw(seed, kStream);
  Setting s;
  s.model = draw_model(draw);
  s.batch = draw.between(1, 9);
  s.steps = 2;
  s.wire = draw.one_of(kWires);
  s.grad_clip = draw.chance(0.7) ? 1.0 : 0;
  s.devices = draw_fleet(draw);
  s.device_ranks = static_cast<int>(std::min<std::int64_t>(draw.between(1, 3), std::ssize(s.devices)));
  s.threads = draw.chance(0.2) ? 2 : 1;
  if (draw.chance(0.2))
    s.freeze = {draw.one_of(std::vector<std::string>{"*.0.*", "*norm*", "*ln*", "*embed*", "*wte*", "*mlp*", "*bias"})};
  if (draw.chance(0.3)) s.clock = server::ClockMode::off;
  if (draw.chance(0.3)) s.parts = kSmallParts;
  s.evaluations = draw.chance(0.1) ? 1 : 0;
  s.layout = draw.chance(0.75) ? sched::Layout::stages : sched::Layout::tiles;
  if (s.layout == sched::Layout::stages) {
    if (draw.chance(0.3)) s.chunk_tokens = 128;
    s.owners = draw.one_of(std::vector{plan::OwnerPlaces::automatic, plan::OwnerPlaces::automatic,
                                       plan::OwnerPlaces::replicas, plan::OwnerPlaces::apart});
    s.rounds = draw.chance(0.8);
  } else {
    s.row_groups = draw.between(1, std::min<std::int64_t>(4, s.batch));
    s.keep_columns =
        draw.one_of(std::vector{plan::KeepColumns::never, plan::KeepColumns::where_quicker, plan::KeepColumns::always});
    s.partition = draw.one_of(std::vector{plan::Partition::automatic, plan::Partition::automatic, plan::Partition::grid,
                                          plan::Partition::rows, plan::Partition::equal});
  }
  const Mode modes[] = {Mode::off, Mode::off, Mode::audit, Mode::quorum, Mode::sample, Mode::all};
  s.verification = {.mode = draw.one_of(modes), .fraction = draw.chance(0.5) ? 1.0 : 0.3, .seed = seed};
  const bool in_tiles_only = s.verification.mode == Mode::sample || s.verification.mode == Mode::all;
  if (in_tiles_only && s.layout == sched::Layout::stages) s.verification.mode = Mode::off;
  s.preload = draw.chance(0.8);
  s.server_sums = draw.chance(0.5);
  if (draw.chance(0.3))
    for (fleet::DeviceProfile& device : s.devices) device.jitter = Seconds(draw.scale(1e-4, 0.2));
  if (in_8_bits && draw.chance(0.25)) s.wire.boundary = DType::mxint8;
  return s;
}

std::string describe(std::uint64_t seed, const Setting& s) {
  const model::ModelConfig& m = s.model;
  return fmt::format(
      "setting {}: {} L{} H{}/{} d{} f{} V{} T{} tie {}, batch {}, {}, {} devices on {} ranks, memory {}, {}, chunk "
      "{}, "
      "rounds {}, groups {}, clock {}, verify {} {}, clip {}, freeze {}, {} evaluations, {} churn events, "
      "server sums {}, jitter {}",
      seed, m.family, m.n_layer, m.n_head, m.n_kv_head, m.d_model, m.d_ff, m.vocab_size, m.seq_len, m.tie_embeddings,
      s.batch, name_of(s.wire), s.devices.size(), s.device_ranks, s.devices.front().memory.value(), name_of(s.layout),
      s.chunk_tokens, s.rounds, s.row_groups, static_cast<int>(s.clock), server::name_of(s.verification.mode),
      s.verification.fraction, s.grad_clip, s.freeze.empty() ? "" : s.freeze.front(), s.evaluations, s.churn.size(),
      s.server_sums, s.devices.front().jitter.value());
}

// False: the devices cannot hold it.
bool holds(std::uint64_t seed, bool with_losses, bool devices_alone = false, bool in_8_bits = true) {
  Setting s = draw_setting(seed, in_8_bits);
  if (devices_alone) s.server_sums = false;
  if (s.layout == sched::Layout::stages && !plan_of(s)) return false;
  const std::uint64_t wanted = honest_bits(s);
  try {
    if (with_losses) {
      s.clock = server::ClockMode::virtual_time;
      s.churn = random_schedule(seed, std::ssize(s.devices), train(s).time, /*liars=*/false);
    }
    SCOPED_TRACE(describe(seed, s));
    const Outcome got = train(s);
    EXPECT_EQ(got.sooner_than_bound, 0);
    EXPECT_EQ(got.hash, wanted);
    EXPECT_EQ(got.rejected, 0);
    EXPECT_TRUE(got.distrusted.empty());
    // An evaluation moves the clock, so times round otherwise; a simulated quorum draws other pairs; and jitter is
    // drawn for the messages of a run, of which planning is none.
    const bool foreseen = s.clock == server::ClockMode::virtual_time && s.evaluations == 0 &&
                          s.devices.front().jitter.value() == 0 && s.layout == sched::Layout::stages &&
                          s.verification.mode != Mode::quorum;
    if (!with_losses && foreseen) {
      const Outcome foretold = simulate(s);
      EXPECT_EQ(got.time, foretold.time);
      EXPECT_EQ(got.bytes_down, foretold.bytes_down);
      EXPECT_EQ(got.bytes_up, foretold.bytes_up);
    }
  } catch (const InputError&) { return false; } catch (const std::exception& error) {
    ADD_FAILURE() << describe(seed, s) << ": " << error.what();
  }
  return true;
}

constexpr int kFewer = all_or_few(1, 4);

// jobs/hunt.sh tries others.
constexpr const char* kOthers = "CLEAVE_SETTINGS";

TEST(AnySetting, TrainsToTheSameBits) {
  expect_of_drawn(kOthers, 120 / kFewer, 2, [](std::uint64_t seed) { return holds(seed, false); });
}

TEST(AnySetting, TrainsToTheSameBitsWhateverIsLost) {
  expect_of_drawn(kOthers, 60 / kFewer, 2, [](std::uint64_t seed) { return holds(seed, true); });
}

// One device lies, and everything that it may lie about is looked at: it leaves no trace, and nobody else is accused.
bool finds_liar(std::uint64_t seed, bool in_8_bits = true) {
  using Kind = fleet::InjectedFaultKind;
  Draw draw(seed ^ 0x5eed, kStream);
  Setting s = draw_setting(seed, in_8_bits);
  while (std::ssize(s.devices) < 3) {
    s.devices.push_back(s.devices.back());
    s.devices.back().id = DeviceId(std::ssize(s.devices) - 1);
  }
  s.clock = server::ClockMode::virtual_time;
  if (s.layout == sched::Layout::stages && !plan_of(s)) return false;
  const Mode checks[] = {Mode::audit, Mode::audit, Mode::quorum};
  s.verification = {.mode = draw.one_of(checks), .fraction = 1.0, .seed = seed};
  if (s.layout == sched::Layout::stages && !plan_of(s)) return false;
  const std::uint64_t wanted = honest_bits(s);
  const Kind kinds[] = {Kind::element, Kind::bit, Kind::swap_rows, Kind::zero,  Kind::stale,
                        Kind::bias,    Kind::nan, Kind::infinity,  Kind::other, Kind::huge};
  const std::int64_t who = draw.between(0, std::ssize(s.devices) - 1);
  const Kind kind = draw.one_of(kinds);
  s.churn = {liar(who, draw.chance(0.5) ? 1.0 : draw.scale(0.02, 1), kind)};
  SCOPED_TRACE(describe(seed, s) + fmt::format(", device {} lies: {}", who, static_cast<int>(kind)));
  try {
    const Outcome got = train(s);
    EXPECT_EQ(got.sooner_than_bound, 0);
    EXPECT_EQ(got.hash, wanted);
    for (const DeviceId device : got.distrusted) EXPECT_EQ(device, DeviceId(who));
  } catch (const InputError&) { return false; } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return true;
}

TEST(AnySetting, LiarsLeaveNoTrace) {
  expect_of_drawn(kOthers, 60 / kFewer, 2, [](std::uint64_t seed) { return finds_liar(seed); });
}

// Settings that once ended in an error, or in a device that was accused though it was honest.
TEST(AnySetting, ThatOnceFailed) {
  constexpr std::uint64_t kCalm[] = {111, 331, 877, 1056, 1059, 13293, 60823, 60850, 60890},
                          kLost[] = {630, 672, 783, 20003, 22169, 80210, 82033, 82471};
  for (const std::uint64_t seed : std::span(kCalm).first(all_or_few(9, 3)))
    EXPECT_TRUE(holds(seed, false, false, /*in_8_bits=*/false)) << seed;
  for (const std::uint64_t seed : std::span(kLost).first(all_or_few(8, 2)))
    EXPECT_TRUE(holds(seed, true, /*devices_alone=*/true, /*in_8_bits=*/false)) << seed;
  for (const std::uint64_t seed : {44650, 44857}) EXPECT_TRUE(finds_liar(seed, /*in_8_bits=*/false)) << seed;
}

}  // namespace
}  // namespace cleave::testing_run
