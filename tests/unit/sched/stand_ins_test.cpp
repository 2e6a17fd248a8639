// Who stands in for what is lost in stages: shares of slices and sequences, and when they are done.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "stage_case.hpp"
#include "stages/run_state.hpp"
#include "stages/share_out.hpp"
#include "stages/stand_ins.hpp"

namespace cleave::sched {
namespace {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

class StandIns : public testing::Test {
 protected:
  StandIns() : graph(graph_of("opt", 8, 4)), work(plan::stage_work_of(graph, DType::f16)), cost(work, 1, 2, 128) {}
  std::vector<plan::PieceSlice> all() const { return plan::slices_between(work, cost, 0, 1); }
  static stages::Candidate candidate(std::int32_t device, double downlink, double uplink) {
    stages::Candidate of;
    of.device = device;
    of.memory = 1e9;
    of.downlink = downlink;
    of.uplink = uplink;
    of.compute = 1e15;
    return of;
  }
  stages::LostSums all_lost(std::int64_t sequences) const {
    stages::LostSums lost;
    lost.stage = 1;
    lost.cost = &cost;
    lost.slices = all();
    lost.sequences = sequences;
    return lost;
  }
  std::vector<std::vector<stages::OwnerPart>> share(const std::vector<stages::LostSums>& lost,
                                                    const std::vector<stages::Candidate>& candidates,
                                                    Seconds enough) const {
    return stages::share_out(work, lost, candidates, enough, kNever, 128).parts;
  }
  model::StepGraph graph;
  plan::StageWork work;
  plan::StageCost cost;  // an MLP half
};

TEST_F(StandIns, PartsOfSlicesFollowEachOtherAndFillThem) {
  for (const std::int64_t count : {1, 2, 3, 7}) {
    std::vector<plan::PieceSlice> joined;
    for (const auto& part : stages::split_slices(work, cost, all(), count, 128)) {
      for (const plan::PieceSlice& slice : part) {
        if (!joined.empty() && joined.back().piece == slice.piece) {
          EXPECT_EQ(joined.back().end, slice.begin);
          joined.back().end = slice.end;
        } else {
          joined.push_back(slice);
        }
      }
    }
    EXPECT_EQ(joined, all()) << count;
  }
}

// Two replicas with links so fast up that only reading counts: halving the sequences halves the time, halving the
// slices does not.
TEST_F(StandIns, SequencesAreDividedWhereReadingTakesTheTime) {
  std::vector<stages::Candidate> two{candidate(0, 1e6, 1e12), candidate(1, 1e6, 1e12)};
  for (stages::Candidate& of : two) of.holds.push_back({1, 0, 0.5});
  const auto parts = share({all_lost(8)}, two, Seconds(0)).front();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].run, parts[1].run);
  EXPECT_EQ(parts[0].sequences + parts[1].sequences, 8);
  EXPECT_EQ(parts[0].slices, all());
  EXPECT_EQ(parts[1].slices, all());
}

// Sending takes the time, and partial sums would take twice the bytes.
TEST_F(StandIns, SlicesAreDividedWhereSendingTakesTheTime) {
  const std::vector<stages::Candidate> two{candidate(0, 1e12, 1e5), candidate(1, 1e12, 1e5)};
  const auto parts = share({all_lost(8)}, two, Seconds(0)).front();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].sequences, 8);
  EXPECT_EQ(parts[1].sequences, 8);
  EXPECT_NE(parts[0].slices, parts[1].slices);
}

// Who owns other slices of the stage reads the sequences that are to come anyway, and needs no weights.
TEST_F(StandIns, OwnersOfTheStageGoFirst) {
  const std::vector<stages::Candidate> outsiders{candidate(0, 1e6, 1e6), candidate(1, 1e6, 1e6),
                                                 candidate(3, 1e6, 1e6)};
  std::vector<stages::Candidate> all = outsiders;
  all.insert(all.begin() + 2, candidate(2, 1e6, 1e6));
  all[2].holds.push_back({1, 0, 0.5});
  stages::LostSums lost = all_lost(8);
  const Seconds alone = stages::share_out(work, std::span(&lost, 1), outsiders, Seconds(0), kNever, 128).by;
  lost.readers = {{2, 8, true}};
  const stages::SharedOut shared = stages::share_out(work, std::span(&lost, 1), all, Seconds(0), kNever, 128);
  ASSERT_FALSE(shared.parts.front().empty());
  EXPECT_EQ(shared.parts.front().front().device, 2);
  EXPECT_TRUE(shared.parts.front().front().shares_room);
  EXPECT_LT(shared.by.value(), 0.8 * alone.value());
}

// A limit that nobody keeps: nothing is given to anybody, so that it can be tried again when devices have room.
TEST_F(StandIns, WhatNobodyCanDoInTimeIsHeldBack) {
  const std::vector<stages::Candidate> two{candidate(0, 1e6, 1e5), candidate(1, 1e6, 1e5)};
  const stages::LostSums lost = all_lost(8);
  const auto shared = [&](Seconds limit) {
    return stages::share_out(work, std::span(&lost, 1), two, Seconds(0), limit, 128);
  };
  const Seconds by = shared(kNever).by;
  EXPECT_TRUE(shared(by * 0.8).parts.front().empty());
  EXPECT_FALSE(shared(by * 1.05).parts.front().empty());
  EXPECT_LE(shared(by * 1.05).by.value(), by.value() * 1.05);
}

// Eight devices would share what takes one of them far too long; the interface carries that to no more than two of
// them.
TEST_F(StandIns, PartsShareTheInterface) {
  const std::vector<stages::Candidate> many(8, candidate(0, 1e5, 1e12));
  const stages::LostSums lost = all_lost(8);
  const auto shared = [&](const stages::SharedInterface& interface) {
    return stages::share_out(work, std::span(&lost, 1), many, Seconds(0), kNever, 128, interface);
  };
  const auto passes_out = [](const stages::SharedOut& of) {
    double bytes = 0;
    for (const stages::OwnerPart& part : of.parts.front())
      bytes += static_cast<double>((part.cost.weights + part.cost.operands * part.sequences).value());
    return bytes;
  };
  const stages::SharedOut wide = shared({});
  EXPECT_GT(wide.parts.front().size(), 4U);
  for (const double rate : {1e6, 2e5, 1e5}) {
    const stages::SharedOut narrow = shared({.out = rate});
    EXPECT_LE(passes_out(narrow), rate * narrow.by.value()) << rate;
    EXPECT_LE(passes_out(narrow), passes_out(wide)) << rate;
    // What is in hand goes first.
    const stages::SharedOut later = shared({.out = rate, .out_busy = 1000});
    EXPECT_LE(passes_out(later), rate * (later.by.value() - 1000)) << rate;
  }
  EXPECT_LE(shared({.out = 1e5}).parts.front().size(), 2U);
  // What comes in counts as well.
  const stages::SharedOut in = shared({.in = 1e3});
  double sums = 0;
  for (const stages::OwnerPart& part : in.parts.front())
    sums += part.cost.elements * (in.parts.front().size() > 1 ? 4 : 2);
  EXPECT_LE(sums, 1e3 * in.by.value());
}

TEST_F(StandIns, OneDoesItWhereThereIsTime) {
  const std::vector<stages::Candidate> many(8, candidate(0, 1e6, 1e6));
  EXPECT_EQ(share({all_lost(8)}, many, Seconds(1e6)).front().size(), 1U);
}

// Shares are in proportion to links: the one that is four times as fast takes about four times as much.
TEST_F(StandIns, TheQuickerDeviceTakesMore) {
  std::vector<stages::Candidate> two{candidate(0, 1e6, 1e12), candidate(1, 4e6, 1e12)};
  for (stages::Candidate& of : two) of.holds.push_back({1, 0, 0.5});
  const auto parts = share({all_lost(100)}, two, Seconds(0)).front();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].device, 1);
  EXPECT_NEAR(static_cast<double>(parts[0].sequences), 80, 4);
}

// What is lost together is recomputed together: neither waits for the other.
TEST_F(StandIns, LostTogetherSharedTogether) {
  std::vector<stages::Candidate> some;
  for (std::int32_t i = 0; i < 12; ++i) some.push_back(candidate(i, 1e6, 1e6));
  const auto alone = share({all_lost(16)}, some, Seconds(0));
  const auto both = share({all_lost(16), all_lost(16)}, some, Seconds(0));
  std::set<std::int32_t> devices;
  for (const auto& parts : both) {
    EXPECT_FALSE(parts.empty());
    for (const stages::OwnerPart& part : parts) EXPECT_TRUE(devices.insert(part.device).second) << part.device;
  }
  EXPECT_LT(both.front().size(), alone.front().size());
}

// Fleets, losses and memory drawn from seeds: every slice of every lost owner is summed over each sequence once, no
// device is asked twice or for more memory than it has, and the same is decided twice.
TEST_F(StandIns, WhateverIsLostIsFilledOnce) {
  std::int64_t placed = 0, unassigned = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    std::vector<stages::Candidate> some;
    const auto count = static_cast<std::int32_t>(draw(1, 30));
    for (std::int32_t i = 0; i < count; ++i) {
      stages::Candidate of = candidate(i, draw(1e5, 1e7), draw(1e5, 1e6));
      of.memory = draw(1e4, 4e6);
      of.compute = draw(1e9, 1e11);
      of.down_busy = draw(0, 3);
      of.sums_busy = draw(0, 1);
      of.last_read = draw(0, 1);
      if (draw(0, 1) < 0.3) of.holds.push_back({1, 0, 0.2});
      if (draw(0, 1) < 0.3) of.holds.push_back({2, 3e5, 0.2});
      some.push_back(of);
    }
    std::vector<stages::LostSums> lost;
    for (int i = 0; i < 1 + static_cast<int>(draw(0, 4)); ++i) {
      lost.push_back(all_lost(1 + static_cast<std::int64_t>(draw(0, 20))));
      const double from = draw(0, 0.8);
      lost.back().slices = plan::slices_between(work, cost, from, draw(from + 0.1, 1));
      lost.back().partial = draw(0, 1) < 0.3;
    }
    const Seconds enough(draw(0, 20));
    const auto all_parts = share(lost, some, enough), again = share(lost, some, enough);
    ASSERT_EQ(all_parts.size(), lost.size());
    std::set<std::int32_t> devices;
    for (std::size_t i = 0; i < lost.size(); ++i) {
      ASSERT_EQ(all_parts[i].size(), again[i].size());
      if (all_parts[i].empty()) {
        ++unassigned;
        continue;
      }
      ++placed;
      std::map<std::int64_t, std::int64_t> sequences;
      std::vector<plan::PieceSlice> joined;
      for (std::size_t k = 0; k < all_parts[i].size(); ++k) {
        const stages::OwnerPart& part = all_parts[i][k];
        EXPECT_EQ(part.device, again[i][k].device) << seed;
        EXPECT_TRUE(devices.insert(part.device).second) << seed;
        const stages::Candidate& of = some[static_cast<std::size_t>(part.device)];
        EXPECT_LE(static_cast<double>(stages::owner_memory(work, part.cost, part.replica).value()), of.memory_for(1));
        EXPECT_EQ(part.replica, of.is_replica(1));
        if (sequences[part.run] == 0) {
          for (const plan::PieceSlice& slice : part.slices) {
            if (!joined.empty() && joined.back().end == slice.begin) {
              joined.back().end = slice.end;
            } else {
              joined.push_back(slice);
            }
          }
        }
        sequences[part.run] += part.sequences;
      }
      EXPECT_EQ(joined, lost[i].slices) << seed;
      for (const auto& [run, its] : sequences) EXPECT_EQ(its, lost[i].sequences) << seed << ' ' << run;
    }
  }
  EXPECT_GT(placed, 300);
  EXPECT_GT(unassigned, 0);
}

// The server reads and sends nothing: its processor decides. It has some of every lost owner, one after another, behind
// devices that have the weights.
TEST_F(StandIns, TheServerTakesWhatDevicesWouldBeLateWith) {
  const std::vector<stages::Candidate> devices{candidate(0, 1e4, 1e4), candidate(1, 1e4, 1e4)};
  const std::vector<stages::LostSums> lost{all_lost(8), all_lost(8), all_lost(8)};
  const plan::OwnerCost cost_of_all = plan::owner_cost(work, cost, all(), 128);
  stages::Candidate server = candidate(stages::kServer, stages::kAtHand, stages::kAtHand);
  server.memory = stages::kAtHand;
  server.compute = 8 * cost_of_all.alone.value();  // a second for each owner
  std::vector<stages::Candidate> with_server = devices;
  with_server.insert(with_server.begin(), server);
  const auto by = [&](const std::vector<stages::Candidate>& some) {
    return stages::share_out(work, lost, some, Seconds(1), kNever, 128).by.value();
  };
  EXPECT_GT(by(devices), 20);
  EXPECT_NEAR(by(with_server), 3, 0.3);
  with_server[0].compute_busy = 5;
  EXPECT_NEAR(by(with_server), 8, 0.6);
  // Whoever has the weights is asked first, as far as there is time.
  with_server[1].holds.push_back({1, 0, 0.5});
  const auto parts = stages::share_out(work, std::span(lost).first(1), with_server, Seconds(1e4), kNever, 128).parts;
  ASSERT_EQ(parts.front().size(), 1U);
  EXPECT_EQ(parts.front().front().device, 0);
  // The server goes before it where it is asked first and can take all in nine tenths of the time, else as before.
  with_server[0].asked_first = true;
  for (const auto& [time, first] :
       {std::pair(7.0, stages::kServer), std::pair(6.5, 0), std::pair(1e4, stages::kServer)}) {
    with_server[1].uplink = with_server[1].downlink = 1e9;
    const auto taken = stages::share_out(work, std::span(lost).first(1), with_server, Seconds(time), kNever, 128).parts;
    ASSERT_FALSE(taken.front().empty()) << time;
    EXPECT_EQ(taken.front().front().device, first) << time;
  }
}

TEST(DealSequences, EachPartGetsItsNumberSpreadOverAll) {
  const std::vector<std::int64_t> shares{6, 2, 1};
  const std::vector<std::size_t> who = stages::deal_sequences(shares);
  ASSERT_EQ(who.size(), 9U);
  for (std::size_t k = 0; k < shares.size(); ++k) EXPECT_EQ(std::count(who.begin(), who.end(), k), shares[k]) << k;
  EXPECT_EQ(std::count(who.begin(), who.begin() + 5, 0U), 3) << "about two of three anywhere";
}

// Whoever stands in for an owner takes the memory that the plan reserved for the owner.
TEST_F(StandIns, TakeTheMemoryThatWasPlanned) {
  const std::optional<plan::StagePlan> found = plan::find_stages(work, devices_of(40, 1), {.server = kWide});
  ASSERT_TRUE(found);
  const plan::StagePlan& plan = *found;
  std::int64_t replicas = 0;
  for (const plan::GradientOwner& owner : plan.owners) {
    const plan::Stage& stage = plan.stages[static_cast<std::size_t>(owner.stage)];
    const plan::StageCost of(work, stage.first, stage.end, plan.chunk);
    const plan::OwnerCost needs = plan::owner_cost(work, of, owner.slices, plan.chunk);
    EXPECT_EQ(stages::owner_memory(work, needs, owner.replica), owner.memory) << owner.device.value;
    replicas += owner.replica ? 1 : 0;
  }
  EXPECT_GT(replicas, 0);
  EXPECT_LT(replicas, std::ssize(plan.owners));
}

TEST_F(StandIns, AHelperHasRoomAndIsThereInTime) {
  std::vector<stages::Candidate> some{candidate(0, 1e6, 1e6), candidate(1, 1e5, 1e9), candidate(2, 1e6, 9e5)};
  some[0].memory = static_cast<double>(cost.least_replica().value()) - 1;
  const Seconds patience(2 * static_cast<double>(cost.weights().value()) / 1e6);
  const stages::Shortage shortage{.stage = 1, .patience = patience};
  const auto helper = stages::choose_helper(some, cost, shortage);
  ASSERT_TRUE(helper);
  EXPECT_EQ(helper->device, 2) << "0 lacks a byte, 1 would be late";
  some[2].holds.push_back({1, 0, 0.5});
  EXPECT_FALSE(stages::choose_helper(some, cost, shortage)) << "it is one already";
}

// Its weights take 10 s of a downlink that has gaps of 4 s before the helper's own sums are sent.
TEST_F(StandIns, AHelperHoldsUpNoSumsOfItsOwn) {
  std::vector<stages::Candidate> one{candidate(0, static_cast<double>(cost.weights().value()) / 10, 1e6)};
  one[0].own_sums = 50;
  one[0].own_gaps = 4;
  stages::Shortage shortage{.stage = 1, .sends = 0, .uplink = 1e6, .step_left = Seconds(57)};
  EXPECT_TRUE(stages::choose_helper(one, cost, shortage)) << "they are sent after 56 s";
  shortage.step_left = Seconds(55);
  EXPECT_FALSE(stages::choose_helper(one, cost, shortage));
  one[0].own_gaps = 6;
  EXPECT_TRUE(stages::choose_helper(one, cost, shortage));
  shortage.sends = 1e9;  // a third of its boundaries come to it
  EXPECT_FALSE(stages::choose_helper(one, cost, shortage));
  shortage.uplink = 0;
  EXPECT_TRUE(stages::choose_helper(one, cost, shortage)) << "nobody else holds the stage";
  shortage.uplink = 1e6;
  one[0].own_sums = one[0].own_gaps = 0;
  EXPECT_TRUE(stages::choose_helper(one, cost, shortage)) << "it owns nothing";
}

}  // namespace
}  // namespace cleave::sched
