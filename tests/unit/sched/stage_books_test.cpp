// The books of a step in stages, looked at between any two events while devices come and go: memory that is taken is
// given back once, slots are free or in use, and every sequence of every owner is waited for, or summed, once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "drawn_stages.hpp"
#include "stages/stage_run.hpp"
#include "support/cases.hpp"
#include "support/draw.hpp"

namespace cleave::sched::stages {
namespace {

using testing_support::all_or_few;

// Calls look() before every event, and knows what was sent to stay on devices.
class Looked final : public ForwardingFleet<> {
 public:
  using ForwardingFleet::ForwardingFleet;

  struct Held {
    std::int32_t device = 0;
    Bytes memory;
  };
  std::map<TaskletId, Held> held;
  std::function<void()> look;
  std::int64_t looks = 0;

  void submit(const Tasklet& tasklet) override {
    if (tasklet.stays_on_device())
      held[tasklet.id] = {static_cast<std::int32_t>(tasklet.piece.device.value), tasklet.piece.resident};
    ForwardingFleet::submit(tasklet);
  }
  void release(TaskletId load, DeviceId device) override {
    EXPECT_EQ(held.erase(load), 1U) << "load " << load.value << " is released twice, or after its device left";
    ForwardingFleet::release(load, device);
  }
  Event next_event(Seconds deadline) override {
    ++looks;
    look();
    const Event event = ForwardingFleet::next_event(deadline);
    if (event.kind == EventKind::left)
      std::erase_if(held, [&](const auto& of) { return of.second.device == event.device.value; });
    return event;
  }
};

class Audit {
 public:
  Audit(StageRun& run, const Looked& fleet) : run_(run), fleet_(fleet) {}

  // Whether something was wrong; says what.
  bool look() {
    if (run_.recovery.is_pending()) return false;  // what is lost is still with those that have left
    const bool before = testing::Test::HasFailure();
    memory();
    slots();
    sums();
    counters();
    return testing::Test::HasFailure() && !before;
  }
  // No device holds anything.
  void end() {
    for (const auto& [load, id] : std::exchange(run_.loads, {})) {
      if (run_.book(id).present) run_.fleet.release(load, DeviceId(id));
    }
    EXPECT_TRUE(fleet_.held.empty()) << fleet_.held.size() << " loads are never released";
  }

 private:
  [[nodiscard]] bool is_there(std::int32_t id) const { return run_.device[static_cast<std::size_t>(id)].present; }

  void memory() {
    std::map<std::int32_t, Bytes> roles, held;
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      for (const ActiveReplica& host : run_.at(s).replicas) {
        EXPECT_TRUE(is_there(host.device)) << "a replica of stage " << s << " on a device that has left";
        roles[host.device] += run_.at(s).cost.weights();
        if (!host.retired) roles[host.device] += run_.places(run_.at(s).cost, host);
      }
    }
    for (const OwnerState& of : run_.owner) {
      if (!of.active() || of.device == kServer) continue;
      EXPECT_TRUE(is_there(of.device)) << "an owner on a device that has left";
      const bool has_weights = std::ranges::any_of(run_.at(of.stage).replicas,
                                                   [&](const ActiveReplica& host) { return host.device == of.device; });
      EXPECT_TRUE(has_weights || !of.replica || of.left == 0)
          << "an owner of stage " << of.stage << " sums with weights that were given up";
      roles[of.device] += run_.memory_of(of);
      if (of.room.valid()) roles[of.device] += of.cost.at_work;
    }
    for (const auto& [load, of] : fleet_.held) held[of.device] += of.memory;
    for (std::size_t i = 0; i < run_.device.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const DeviceBook& on = run_.book(id);
      if (!on.present) {
        EXPECT_EQ(held[id].value(), 0) << "device " << id << " was dismissed with what it holds";
        continue;
      }
      EXPECT_FALSE(run_.late_devices.dismissed().contains(id)) << "device " << id << " is there, and dismissed";
      EXPECT_GE(on.free.value(), 0) << "device " << id;
      EXPECT_EQ((on.profile.memory - on.free).value(), roles[id].value()) << "roles of device " << id;
      EXPECT_EQ((on.profile.memory - on.free).value(), held[id].value()) << "loads on device " << id;
    }
  }

  void slots() {
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      for (const ActiveReplica& host : run_.at(s).replicas) {
        if (host.retired) continue;
        std::int64_t forward = 0, backward = 0, kept = 0;
        for (std::int64_t q = 0; q < run_.batch; ++q) {
          const Visit &forth = run_.visit(run_.forward, s, q), &back = run_.visit(run_.backward, s, q);
          if (forth.device == host.device) {
            const bool open = forth.done < run_.chunks || (run_.passes_head(s) && forth.sums > 0);
            if (forth.kept && !run_.passes_head(s)) {
              ++kept;
            } else if (open) {
              ++(host.keeps() ? kept : forward);
            }
          }
          if (back.device == host.device && !back.kept && (back.done < run_.chunks || back.sums > 0)) ++backward;
          const bool elsewhere = back.placed() && !(back.kept && back.device == forth.device);
          EXPECT_FALSE(elsewhere && forth.kept && forth.device == host.device)
              << "what a way forward has left at stage " << s << " is kept for a way back that is elsewhere";
        }
        if (!run_.options.quorum) {
          EXPECT_EQ(host.forward_slots + forward, host.forward_all) << "stage " << s << ", device " << host.device;
          EXPECT_EQ(host.backward_slots + backward, host.backward_all) << "stage " << s << ", device " << host.device;
        }
        EXPECT_EQ(host.kept_slots + kept, host.kept_all) << "stage " << s << ", device " << host.device;
      }
    }
    std::map<std::int32_t, double> in_hand;
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      for (std::int64_t q = 0; q < run_.batch; ++q) {
        const Visit &forth = run_.visit(run_.forward, s, q), &back = run_.visit(run_.backward, s, q);
        for (const Visit* const of : {&forth, &back}) {
          if (!of->placed() || is_there(of->device)) continue;
          EXPECT_EQ(of->done, run_.chunks) << "stage " << s << ", sequence " << q << " is with a device that has left";
          EXPECT_FALSE(of->kept) << "stage " << s << ", sequence " << q;
          EXPECT_EQ(of->sums, 0) << "stage " << s << ", sequence " << q;
        }
        const auto left = [&](std::int64_t rows) {
          return static_cast<double>(run_.at(s).cost.boundary(rows).value());
        };
        if (forth.placed()) in_hand[forth.device] += left(run_.work.seq - run_.rows_to(forth.done - 1));
        if (back.placed()) in_hand[back.device] += left(run_.rows_to(run_.chunks - back.done - 1));
      }
    }
    for (std::size_t i = 0; i < run_.device.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      EXPECT_NEAR(is_there(id) ? run_.book(id).in_hand - in_hand[id] : 0, 0, 1e-6) << "device " << id;
    }
  }

  void sums() {
    std::map<std::int32_t, std::int64_t> waited_for, again, sending;
    std::map<std::tuple<std::int32_t, std::int64_t, std::int32_t>, std::int32_t> of_visits;
    run_.purposes.for_each([&](const Purpose& purpose) {
      if (purpose.errand != Errand::sum) return;
      ++waited_for[purpose.owner];
      if (purpose.of_visited) ++of_visits[{purpose.stage, purpose.sequence, purpose.device}];
      const auto with = run_.shared_sums.find(purpose.tasklet.value);
      if (with == run_.shared_sums.end()) return;
      for (const std::int32_t other : with->second.owners) ++waited_for[other];
      if (with->second.again) ++again[purpose.device];
    });
    for (std::size_t i = 0; i < run_.device.size(); ++i) {
      for (const DueSum& due : run_.device[i].due) ++waited_for[due.owner];
    }
    for (const DueSum& due : run_.of_server.due) ++waited_for[due.owner];
    for (std::size_t i = 0; i < run_.owner.size(); ++i) {
      const OwnerState& of = run_.owner[i];
      if (!of.active()) continue;
      const auto unseen =
          std::ranges::count_if(of.sequences, [&](std::int64_t q) { return !of.seen[static_cast<std::size_t>(q)]; });
      EXPECT_EQ(of.left, unseen + waited_for[static_cast<std::int32_t>(i)]) << "owner " << i;
      if (of.panels > 0 && !of.sent && !of.closed) ++sending[of.device];
    }
    for (std::size_t i = 0; i < run_.device.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      if (!is_there(id)) continue;
      EXPECT_EQ(run_.book(id).summing, again[id]) << "device " << id;
      EXPECT_EQ(run_.book(id).sending, sending[id]) << "device " << id;
    }
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      for (std::int64_t q = 0; q < run_.batch; ++q) {
        const Visit& ran = run_.summed_visit(s, q);
        if (!ran.placed() || !is_there(ran.device)) continue;
        EXPECT_EQ(ran.sums, (of_visits[{s, q, ran.device}])) << "stage " << s << ", sequence " << q;
      }
    }
  }

  void counters() {
    std::int64_t under_way = 0;
    std::map<std::int32_t, std::int64_t> by_server;
    run_.purposes.for_each([&](const Purpose& purpose) {
      under_way += purpose.is_witness() ? 0 : 1;
      if (purpose.errand == Errand::witness_sums && purpose.owner < 0) ++by_server[purpose.stage];
    });
    EXPECT_EQ(run_.under_way, under_way);
    for (std::int32_t s = 0; s <= run_.top(); ++s) {
      if (run_.runs_in_tiles(s)) continue;
      std::int64_t gradients = by_server[s], back = 0;
      for (const std::int32_t index : run_.at(s).owners) {
        const OwnerState& of = run_.owner[static_cast<std::size_t>(index)];
        gradients += (of.closed ? 0 : 1) + (of.watched.empty() ? 0 : 1);
      }
      for (std::int64_t q = 0; q < run_.batch; ++q) back += run_.summed_visit(s, q).done < run_.chunks ? 1 : 0;
      EXPECT_EQ(run_.at(s).gradients_left, gradients) << "stage " << s;
      EXPECT_EQ(run_.at(s).backward_left, back) << "stage " << s;
    }
  }

  StageRun& run_;
  const Looked& fleet_;
};

// Two steps. False: nobody has room for what was lost.
bool holds(const DrawnStages& drawn) {
  const StageSchedulerOptions& options = drawn.options;
  SimulatedFleet behind(drawn.devices, options.stages.server, options.wire, drawn.churn);
  Looked fleet(behind);
  StageRun run(fleet, drawn.graph, drawn.plan, options);
  Audit audit(run, fleet);
  struct Wrong {};
  fleet.look = [&] {
    if (audit.look()) throw Wrong{};
  };
  bool done = true;
  try {
    for (int step = 0; step < 2; ++step) {
      run.run({});
      audit.end();
    }
  } catch (const InputError&) { done = false; } catch (const Wrong&) {
    ADD_FAILURE() << "at " << behind.now().value() << " s, after " << fleet.looks << " events";
  } catch (const Bug& bug) { ADD_FAILURE() << bug.what(); }
  for (std::size_t i = 0; i < drawn.devices.size(); ++i)
    EXPECT_LE(behind.usage()[i].memory_peak.value(), drawn.devices[i].memory.value()) << "device " << i;
  return done;
}

// jobs/hunt.sh tries others.
constexpr const char* kOthers = "CLEAVE_STAGE_BOOKS";

bool holds_of(std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "fleet " << seed << ": a step in stages");
  const std::optional<DrawnStages> drawn = StageDraw(seed).stages();
  return drawn && holds(*drawn);
}

TEST(StageBooks, AreRightBetweenAnyTwoEvents) {
  testing_support::expect_of_drawn(kOthers, all_or_few(150, 15), 2, holds_of);
}

// Drawn steps in which something was wrong once: a sequence's forward pass began again at a replica that keeps values,
// and its backward pass went elsewhere (633, 1021); a sum that was taken from a late owner went on holding a slot
// (1422, 1868, 2268); a second device was looked for too late (1895).
TEST(StageBooks, AreRightWhereTheyWereWrong) {
  for (const std::uint64_t seed : {633, 1021, 1422, 1868, 1895, 2268}) EXPECT_TRUE(holds_of(seed)) << seed;
}

}  // namespace
}  // namespace cleave::sched::stages
