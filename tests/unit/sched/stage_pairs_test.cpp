// Steps in stages that ask second devices: who is asked for what, and that everything drawn is recomputed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cleave/sched/collusion.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

using Visit = std::tuple<std::int32_t, std::int64_t, bool>;  // stage, sequence, the backward pass

// What was submitted.
class Recording final : public ForwardingFleet<> {
 public:
  explicit Recording(Fleet& behind) : ForwardingFleet(behind) {}
  void submit(const Tasklet& tasklet) override {
    const StageItem& item = tasklet.item;
    const DeviceId device = tasklet.piece.device;
    switch (tasklet.errand) {
      case Errand::forward:
      case Errand::backward:
        ran[{tasklet.stage, item.sequence, tasklet.errand == Errand::backward}].insert(device);
        break;
      case Errand::witness: made_again[{tasklet.stage, item.sequence, item.back}].push_back(device); break;
      case Errand::send_sums: sent[item.owner] = device; break;
      case Errand::witness_sums:
        compared[item.first].push_back(*item.slices);
        watchers[item.first].insert(device);
        break;
      default: break;
    }
    EXPECT_EQ(tasklet.is_witness(), tasklet.errand == Errand::witness || tasklet.errand == Errand::witness_sums);
    ForwardingFleet::submit(tasklet);
  }
  std::map<Visit, std::set<DeviceId>> ran;
  std::map<Visit, std::vector<DeviceId>> made_again;
  std::map<std::int32_t, DeviceId> sent;
  std::map<std::int32_t, std::vector<std::vector<plan::PieceSlice>>> compared;
  std::map<std::int32_t, std::set<DeviceId>> watchers;
};

StageSchedulerOptions with_pairs(double fraction) {
  StageSchedulerOptions options{{kWide, 0}, DType::f16};
  options.quorum = QuorumOptions{.fraction = fraction, .plan = {}};
  return options;
}

TEST(StagePairs, EverythingIsMadeAgainByOthers) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const model::StepGraph graph = graph_of("opt", 8, 4);
    const auto devices = devices_of(30, seed);
    SimulatedFleet fleet(devices, kWide, DType::f16);
    Recording recording(fleet);
    StageScheduler scheduler(recording, graph, with_pairs(1.0));
    const StepReport report = scheduler.run();
    expect_all_done_once(scheduler, graph);
    EXPECT_EQ(recording.made_again.size(), recording.ran.size());
    std::int64_t by_devices = 0;
    for (const auto& [visit, witnesses] : recording.made_again) {
      EXPECT_EQ(witnesses.size(), 1U);
      for (const DeviceId witness : witnesses) {
        EXPECT_FALSE(recording.ran.at(visit).contains(witness));
        by_devices += witness != kServerDevice ? 1 : 0;
      }
    }
    EXPECT_GT(by_devices, std::ssize(recording.made_again) / 2);
    EXPECT_GE(report.witnesses, by_devices);
    // Units of all slices of all owners.
    EXPECT_EQ(recording.compared.size(), recording.sent.size());
    std::map<std::pair<std::int32_t, std::int64_t>, std::int64_t> units;
    for (const auto& [owner, lists] : recording.compared) {
      EXPECT_FALSE(recording.watchers.at(owner).contains(recording.sent.at(owner))) << "it compares its own sums";
      for (const auto& list : lists) {
        for (const plan::PieceSlice& slice : list) units[{0, slice.piece}] += slice.end - slice.begin;
      }
    }
    const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
    for (std::size_t s = 0; s < scheduler.plan().stages.size(); ++s) {
      const plan::Stage& stage = scheduler.plan().stages[s];
      for (std::int64_t piece = stage.first; piece < stage.end; ++piece) {
        const std::int64_t all = work.pieces[static_cast<std::size_t>(piece)].units;
        EXPECT_EQ((units[{0, piece}]), all * scheduler.plan().groups[s]) << piece;
      }
    }
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << seed;
  }
}

// Takes out several devices at once, as a rank that hosts them does when it dies, while one of them makes a visit
// again.
class LosesARank final : public ForwardingFleet<> {
 public:
  LosesARank(SimulatedFleet& behind, std::int64_t ranks, std::int64_t after)
      : ForwardingFleet(behind), model_(behind), ranks_(ranks), left_(after) {}
  void submit(const Tasklet& tasklet) override {
    if (tasklet.errand == Errand::witness && tasklet.piece.device != kServerDevice && --left_ == 0)
      lost_ = tasklet.piece.device;
    ForwardingFleet::submit(tasklet);
  }
  Event next_event(Seconds deadline) override {
    if (const DeviceId first = std::exchange(lost_, DeviceId()); first.valid()) {
      model_.remove_device(first);
      for (std::int64_t device = first.value % ranks_; device < std::ssize(model_.usage()); device += ranks_)
        model_.remove_device(DeviceId(device));
    }
    return ForwardingFleet::next_event(deadline);
  }
  [[nodiscard]] bool happened() const { return left_ <= 0; }

 private:
  SimulatedFleet& model_;
  std::int64_t ranks_, left_;
  DeviceId lost_;
};

// The devices are told of one after the other: nothing goes to one that is about to be.
TEST(StagePairs, ADeadRankTakesAllItsWitnessesAlong) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  for (std::int64_t after = 1; after < 40; ++after) {
    SimulatedFleet behind(devices_of(30, 1), kWide, DType::f16);
    LosesARank fleet(behind, 2, after);
    StageScheduler scheduler(fleet, graph, with_pairs(1.0));
    ASSERT_NO_THROW(scheduler.run()) << after;
    expect_all_done_once(scheduler, graph);
    EXPECT_TRUE(fleet.happened()) << after;
  }
}

TEST(StagePairs, AShareIsDrawnAndOthersInEveryStep) {
  const model::StepGraph graph = graph_of("opt", 16, 4);
  SimulatedFleet fleet(devices_of(30, 1), kWide, DType::f16);
  Recording recording(fleet);
  StageScheduler scheduler(recording, graph, with_pairs(0.25));
  std::set<Visit> before;
  std::size_t all = 0, drawn = 0, both = 0;
  for (int step = 0; step < 4; ++step) {
    recording.made_again.clear();
    recording.ran.clear();
    (void)scheduler.run();
    all += recording.ran.size();
    drawn += recording.made_again.size();
    std::set<Visit> now;
    for (const auto& [visit, witnesses] : recording.made_again) now.insert(visit);
    for (const Visit& visit : now) both += before.contains(visit) ? 1 : 0;
    before = now;
  }
  const auto count = static_cast<double>(all);
  EXPECT_NEAR(static_cast<double>(drawn) / count, 0.25, 5 * std::sqrt(0.25 * 0.75 / count));
  EXPECT_LT(both, drawn / 2) << "the same visits in every step";
}

TEST(StagePairs, NobodyIsAskedAboutWhomHeBelongsTo) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  auto devices = devices_of(30, 2);
  for (fleet::DeviceProfile& device : devices) device.owner = device.id.value % 2 == 0 ? "one" : "other";
  SimulatedFleet fleet(devices, kWide, DType::f16);
  Recording recording(fleet);
  StageScheduler scheduler(recording, graph, with_pairs(1.0));
  (void)scheduler.run();
  const auto belong = [](DeviceId a, DeviceId b) {
    return a != kServerDevice && b != kServerDevice && a.value % 2 == b.value % 2;
  };
  EXPECT_FALSE(recording.made_again.empty());
  for (const auto& [visit, witnesses] : recording.made_again) {
    for (const DeviceId ran : recording.ran.at(visit)) EXPECT_FALSE(belong(ran, witnesses.front()));
  }
  for (const auto& [owner, watchers] : recording.watchers) {
    for (const DeviceId watcher : watchers) EXPECT_FALSE(belong(watcher, recording.sent.at(owner)));
  }
}

// Who is asked leaves, and so does who was.
TEST(StagePairs, OutliveLosses) {
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const model::StepGraph graph = graph_of("opt", 8, 4);
    const auto devices = devices_of(40, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    const Seconds step = StageScheduler(calm, graph, with_pairs(0.5)).run().time;
    for (const double progress : {0.05, 0.3, 0.6, 0.9, 0.99}) {
      fleet::ChurnTrace churn;
      for (const std::int64_t victim : {3, 17, 29})
        churn.push_back({step * progress, DeviceId(victim), fleet::ChurnKind::leave, 1.0});
      SimulatedFleet fleet(devices, kWide, DType::f16, churn);
      StageScheduler scheduler(fleet, graph, with_pairs(0.5));
      const StepReport report = scheduler.run();
      expect_all_done_once(scheduler, graph);
      lost += report.lost;
      for (std::size_t i = 0; i < devices.size(); ++i)
        EXPECT_LE(fleet.usage()[i].memory_peak.value(), devices[i].memory.value()) << seed << ' ' << progress;
    }
  }
  EXPECT_GT(lost, 0);
}

// Visits of a coalition that has k of the replicas of a stage, all alike, are recomputed by somebody else as often as
// docs/security.md says.
TEST(StagePairs, VisitsOfACoalitionAreSeenAsOftenAsStated) {
  const model::StepGraph graph = graph_of("opt", 32, 2);
  auto devices = devices_of(24, 5, 3e7);
  for (fleet::DeviceProfile& device : devices) {
    const DeviceId id = device.id;
    device = devices.front();
    device.id = id;
  }
  for (const double fraction : {0.3, 1.0}) {
    SimulatedFleet fleet(devices, kWide, DType::f16);
    Recording recording(fleet);
    StageScheduler scheduler(recording, graph, with_pairs(fraction));
    double expected = 0, variance = 0;
    std::int64_t seen = 0, visits = 0;
    for (int step = 0; step < 30; ++step) {
      recording.made_again.clear();
      recording.ran.clear();
      (void)scheduler.run();
      for (const auto& [visit, ran] : recording.ran) {
        const auto& replicas = scheduler.plan().stages[static_cast<std::size_t>(std::get<0>(visit))].replicas;
        std::set<DeviceId> coalition;  // every second replica
        for (std::size_t i = 0; i < replicas.size(); i += 2) coalition.insert(replicas[i].device);
        if (!coalition.contains(*ran.begin())) continue;
        const double q = visit_detection_chance(fraction, std::ssize(replicas), std::ssize(coalition));
        expected += q;
        variance += q * (1 - q);
        ++visits;
        const auto found = recording.made_again.find(visit);
        if (found != recording.made_again.end() && !coalition.contains(found->second.front())) ++seen;
      }
    }
    EXPECT_GT(visits, 1000);
    EXPECT_NEAR(static_cast<double>(seen), expected, 5 * std::sqrt(variance)) << fraction;
  }
}

// The page's table of coalitions among the replicas of a stage.
TEST(StagePairs, ThePagesTableIsWhatTheFormulaGives) {
  std::ifstream page(CLEAVE_SOURCE_DIR "/docs/security.md");
  std::int64_t rows = 0;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| replicas R | of them collude k | f | q | m | P, N = 0 | P, N = 20 |") {
      inside = true;
    } else if (!line.starts_with("| ")) {
      inside = inside && line.starts_with("|---");
    } else if (inside) {
      double replicas = 0, coalition = 0, fraction = 0, q = 0, m = 0, now = 0, later = 0;
      ASSERT_EQ(std::sscanf(line.c_str(), "| %lf | %lf | %lf | %lf | %lf | %lf | %lf |", &replicas, &coalition,
                            &fraction, &q, &m, &now, &later),
                7)
          << line;
      const double chance = visit_detection_chance(fraction, std::llround(replicas), std::llround(coalition));
      EXPECT_NEAR(q, chance, 6e-4) << line;
      EXPECT_NEAR(now, std::pow(1 - chance, m), 0.006 * std::pow(1 - chance, m) + 1e-12) << line;
      EXPECT_NEAR(later, std::pow(1 - chance, 21 * m), 0.06 * std::pow(1 - chance, 21 * m) + 1e-12) << line;
      ++rows;
    }
  }
  EXPECT_GE(rows, 8);
}

// Uplinks carry digests, and nothing else of it.
TEST(StagePairs, UplinksCarryNothing) {
  const model::StepGraph graph = graph_of("opt", 8, 4);
  const auto devices = devices_of(30, 3);
  SimulatedFleet plain(devices, kWide, DType::f16), paired(devices, kWide, DType::f16);
  const StepReport without = StageScheduler(plain, graph, {{kWide, 0}, DType::f16}).run();
  const StepReport with = StageScheduler(paired, graph, with_pairs(1.0)).run();
  EXPECT_GT(with.bytes_down.value(), without.bytes_down.value());
  const std::int64_t more = with.bytes_up.value() - without.bytes_up.value();
  EXPECT_LE(more, (with.tasklets - without.tasklets + 8 * with.witnesses) * 144);
}

}  // namespace
}  // namespace cleave::sched
