// StageRun: a step in stages while it runs: its books, and what is done at every event.
//
// stage_run.cpp plans and begins a step, and takes events. Without losses it needs four files more: run_loads.cpp loads
// the devices, run_sequences.cpp sends sequences through the stages, run_gradients.cpp has owners sum what has passed,
// run_rounds.cpp goes from one round of stages to the next. run_room.cpp frees memory, and makes room.
//
// All else is done by components. Each keeps what only it needs, and reads and changes the books here. A component
// calls another one through the step: `run_.recovery.recover()`.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "by_tasklet.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "estimation/rate_estimates.hpp"
#include "stages/loss_book.hpp"
#include "stages/run_candidates.hpp"
#include "stages/run_head.hpp"
#include "stages/run_late.hpp"
#include "stages/run_losses.hpp"
#include "stages/run_progress.hpp"
#include "stages/run_relief.hpp"
#include "stages/run_state.hpp"
#include "stages/run_tiles.hpp"
#include "stages/run_watchers.hpp"
#include "stages/run_witness.hpp"
#include "stages/server_work.hpp"

namespace cleave::sched::stages {

/// Devices of a fleet as they are declared.
[[nodiscard]] std::vector<fleet::DeviceProfile> profiles_of(const Fleet& fleet);
[[nodiscard]] inline Bytes with_header(Bytes payload) { return payload + plan::kMessageHeader; }

inline constexpr std::int64_t kWeightPanel =
    4'000'000;  // bytes: what is more urgent waits for no more than one of them

struct StageRun {
  StageRun(Fleet& of, const model::StepGraph& step, plan::StagePlan layout, StageSchedulerOptions settings);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  /// From begin() until everything is done. Errors: Interrupted where keep_going says no; InputError where what was
  /// lost finds no room, or nothing happens any more.
  void run(const KeepGoing& keep_going);
  void begin();
  void handle(const Event& event);
  /// Updates of parameters may begin, if nothing can be found wrong with gradients any more.
  void begin_updates();
  [[nodiscard]] bool complete() const;
  /// Forgets all that is under way, but for kernels, which are waited for.
  void give_up();

  // ---- What is to be done: the graph, and the plan that all steps follow until the fleet is another one.

  Fleet& fleet;
  const model::StepGraph& graph;
  StageSchedulerOptions options;
  plan::StageWork whole, work;  // as the graph has it; with the head in the plan's parts
  plan::StagePlan plan;
  std::int64_t batch, chunks = 0;  // sequences; of each
  std::int32_t lowest = 0;         // stage that goes backward
  std::int32_t head = 0;           // its stage, or that of its first part
  OpId op;                         // that tasklets bear

  bool in_parts() const { return plan.head_parts > 1; }
  // Sequences pass it forward and backward.
  bool passed_twice(std::int32_t s) const { return s >= lowest && (s < head || in_parts()); }
  // A whole head, which sequences pass once, forward and backward.
  bool passes_head(std::int32_t s) const { return s == head && !in_parts(); }
  bool runs_in_tiles(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].tiles; }
  std::int64_t rows_from(std::int64_t chunk) const { return chunk * plan.chunk; }
  std::int64_t rows_to(std::int64_t chunk) const { return std::min(work.seq, (chunk + 1) * plan.chunk); }

  // ---- What the plan was made for, and what has been learned of the fleet: kept from step to step.

  std::uint64_t planned_for = 0;                   // roster
  bool planned_all_trusted = true;                 // nobody was found out since
  std::vector<fleet::DeviceProfile> planned_with;  // devices that `plan` was made for
  bool outgrown = false;                           // some of those are gone, and there is no plan for the others alone
  RateEstimates rates;                             // of devices, from this step and those before
  std::uint64_t rates_planned = 0;                 // their version that the plan was made with
  std::set<DeviceId> distrusted;                   // they answered wrongly, and get no more work

  // Devices that are there, at the rates that they were found to have.
  std::vector<plan::DeviceState> believed() const;
  std::vector<fleet::DeviceProfile> found_profiles() const;
  // Those of them that are trusted, and not left out.
  std::vector<fleet::DeviceProfile> trusted() const;

  // ---- The books of a step: where every sequence is, what every device has in hand, what every owner has summed.

  std::vector<StageState> stage;
  std::vector<OwnerState> owner;
  std::vector<Visit> forward, backward;        // [stage * batch + sequence]
  std::vector<DeviceBook> device;              // by id
  DeviceBook of_server;                        // as it sums gradients
  std::vector<fleet::DeviceProfile> at_begin;  // devices that were there when the step began
  std::optional<ServerWork> server;

  std::int32_t top() const { return static_cast<std::int32_t>(stage.size()) - 1; }
  StageState& at(std::int32_t s) { return stage[static_cast<std::size_t>(s)]; }
  DeviceBook& book(std::int32_t id) { return id == kServer ? of_server : device[static_cast<std::size_t>(id)]; }
  void open_book(const fleet::DeviceProfile& profile);
  Visit& visit(std::vector<Visit>& visits, std::int32_t s, std::int64_t q);
  // The visit in which a replica makes the operands of its own sums.
  Visit& summed_visit(std::int32_t s, std::int64_t q) { return visit(passes_head(s) ? forward : backward, s, q); }
  // dY of a sequence is complete.
  bool has_gradient(std::int32_t s, std::int64_t q);

  // ---- Tasklets: what is under way, what each is for, and what stays on devices until the step ends.

  ByTasklet<Purpose> purposes;
  std::int64_t under_way = 0;                               // of them, those that are for no pair
  Seconds last_done;                                        // when one of these was
  std::vector<Purpose> ahead;                               // chunks that came before an earlier one of their visit
  std::unordered_map<std::int64_t, SharedSum> shared_sums;  // by tasklet
  std::vector<std::pair<TaskletId, std::int32_t>> loads;    // weights, and memory that is kept for the step
  std::int64_t next_id = 0;

  TaskletId submit(const Purpose& purpose, Priority priority, const plan::PanelRun& run, Bytes resident, bool keeps,
                   StageItem item);
  // A tasklet is answered, or is not wanted any more.
  void remove_purpose(TaskletId tasklet, bool answered = false);

  // ---- Rounds of stages (plan::StagePlan): upward, then down again.

  std::int32_t phase = 0;
  std::int64_t through = 0;  // sequences that have gone forward through the open round

  std::int64_t open_round() const;
  bool is_open(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].round == open_round(); }
  // Sequences go back through the open round, and gradients are summed.
  bool goes_back() const { return phase >= plan.rounds() - 1; }
  bool is_last_phase() const;
  std::int32_t lowest_open() const;
  std::int32_t highest_open() const;

  // ---- The course of a step, and its report.

  Seconds began;
  Seconds last_event;
  LossBook losses;
  StepReport report;
  StageTally tally;
  bool asks_to_go_on = false;  // somebody answered wrongly

  // ---- Components.

  Progress progress{*this};         // how far the step is, how long the rest takes, what losses cost
  HeadJoin head_join{*this};        // where the parts of a head meet
  StagesInTiles tiles{*this};       // rounds that run in tiles
  Witnesses witnesses{*this};       // visits made again by second devices
  Watchers watchers{*this};         // sums made again by second devices
  Candidates candidates{*this};     // what every device could take over
  Recovery recovery{*this};         // lost devices: others have what they had
  Relief relief{*this};             // owners that would be late give sequences to others
  LateDevices late_devices{*this};  // devices that turn out slow

  // ---- Second devices

  bool pairs_left() const { return !witnesses.empty() || !watchers.empty(); }
  // Nothing but second devices is under way.
  bool only_pairs_left() const;
  // Owners have changed hands, and devices are gone or new.
  void look_at_pairs();
  // A second device has answered, or will not.
  void settle_pair(const Purpose& purpose);
  void lose_pair(const Purpose& purpose);

  // ---- Weights, and memory for what passes (run_loads.cpp)

  // What a replica holds beside weights: a chunk at work, and places for sequences.
  Bytes places(const plan::StageCost& cost, const Host& host) const;
  void hold_places(const plan::StageCost& cost, Host& host, std::int32_t s);
  void release_places(Host& host);
  // What its places take more where owners on its device hold so much more of each open sequence; and from now on.
  Bytes places_beside(const plan::StageCost& cost, const Host& host, Bytes held) const;
  void widen_places(std::int32_t s, Host& host, Bytes held);
  void add_host(std::int32_t s, const plan::StageReplica& replica, bool helps);
  std::int32_t add_owner(std::int32_t id, std::int32_t s, bool replica, bool partial,
                         std::vector<plan::PieceSlice> slices, std::vector<std::int64_t> sequences,
                         bool shares_room = false);
  void load_owner(std::int32_t index);
  // What an owner's role takes on its device.
  Bytes memory_of(const OwnerState& of) const;

  // ---- Room (run_room.cpp)

  // Replicas that no sequence will come to any more keep their weights, as long as nobody needs the memory.
  void retire_replicas();
  // Its weights are of no use to what is still to be done there.
  bool may_go(const Host& host, std::int32_t s) const;
  // Free slots of a replica, beyond the least number.
  static std::pair<std::int64_t, std::int64_t> lendable(const Host& host);
  // Slots give way until so much of a device's memory is free.
  void make_room(std::int32_t id, Bytes need, std::int32_t keeps);
  // Of an owner that neither sums nor watches any more the memory is free.
  void leave_role(const OwnerState& of);

  // ---- Sequences (run_sequences.cpp)

  bool place_visit(Visit& of, std::int32_t s, std::int64_t Host::*slots);
  // The sequences that wait for room at a stage take what there is, the first ones first.
  void place_waiting_forward(std::int32_t s);
  void place_waiting_backward(std::int32_t s);
  void send_forward(std::int64_t q, std::int32_t s);
  void open_backward(std::int64_t q, std::int32_t s);
  void arrive_backward(std::int64_t q, std::int32_t s);
  // A sequence is through at the lowest stage.
  void bottom_done();
  // All sequences are through at a stage.
  void norms_done(std::int32_t s);

  // ---- Sums of gradients (run_gradients.cpp)

  // All sequences that have no group yet get one.
  void settle_groups(std::int32_t s);
  // X and dY of a sequence at a stage are at the server: owners get it that will not run it, or did not.
  void sum_elsewhere(std::int64_t q, std::int32_t s);
  // A sequence has passed: a replica that ran it and owns slices has its operands.
  void own_visited(std::int64_t q, std::int32_t s);
  // What has passed before, when the device has time for it.
  void send_again(std::int32_t index, std::int64_t q, std::int32_t loss);
  void send_due(std::int32_t id);
  void send_sums(std::int32_t index);
  // Of one owner of a stage nothing more is to come.
  void gradient_in(std::int32_t s);

 private:
  // ---- stage_run.cpp

  Seconds patient_until;  // since the last event: what is under way takes so long

  // What follows from the plan for every step.
  void take_plan();
  std::optional<plan::StagePlan> find_plan();
  // None: there is none, but those that are there can do what `plan` says, one after another.
  std::optional<plan::StagePlan> plan_for_those_there();
  // The stages of `plan` find room. Sums that find none wait until sequences have passed.
  bool can_pass() const;
  // A stage's gradient has two sources: its owners, and norms, whose gradients come with the sequences.
  using Visitor = std::function<void(TensorId)>;
  void for_sources(const plan::Stage& of_plan, const Visitor& of_owners, const Visitor& of_norms) const;
  // What a tasklet that is done leads to.
  void carry_on(const Purpose& purpose);
  // Nothing is under way that could be answered, and nobody has room for what is left.
  bool is_stuck();
  // One that nobody holds, and that sequences have still to pass; kNobody: there is none.
  std::int32_t stage_without_replica();
  // When silence since the last event means that something is wrong.
  Seconds standstill(bool stuck) const;
  // Silence may last for as long as all that is under way takes, one thing after another. False: it has lasted longer.
  bool still_carries();
  [[noreturn]] void explain_standstill();
  // Of nothing that is under way an answer is wanted any more.
  void forget_all();

  // ---- run_rounds.cpp

  bool phase_is_over();
  void begin_next_phase();
  // Devices give back what they hold of the open round.
  void close_round();
  // What has come to the stages of the open round while they were closed.
  void enter_round();

  // ---- run_loads.cpp, run_room.cpp

  void open_stages();
  // Of the open round; owners, where it goes back. False: some are not there.
  bool load_replicas();
  bool load_owners();
  // Weights stay, with the memory that goes with them, until the step ends. They need no answer: a link carries them
  // before what uses them.
  TaskletId load(const Purpose& purpose, Urgency urgency, Bytes weights, Bytes memory, StageItem item);
  // The weights of a stage that has a chunk now, and those of its owners.
  void bring_weights(std::int32_t s);
  void give_back(TaskletId held, std::int32_t id, Bytes memory);
  void give_up_weights(const Host& host, std::int32_t s);
  void pass_on_room(const OwnerState& of);

  // ---- run_sequences.cpp

  std::int64_t turns = 0;  // that were given on the way back

  // The replica that will be done with a sequence first, of those with room for it.
  Host* choose(std::int32_t s, std::int64_t Host::*slots);
  Host* keeper(std::int64_t q, std::int32_t s);
  void take_visit(Visit& of, std::int32_t s, std::int64_t Host::*slots, const Host& host);
  void leave_visit(const Visit& of, std::int32_t s, std::int64_t Host::*slots);
  void leave_summed(std::int64_t q, std::int32_t s);
  void place_waiting(std::set<std::int64_t>& waiting, std::vector<Visit>& visits, std::int32_t s,
                     std::int64_t Host::*slots, void (StageRun::*begin_visit)(std::int64_t, std::int32_t));
  void arrive_forward(std::int64_t q, std::int32_t s);
  void enter_forward(std::int64_t q, std::int32_t s);
  // X goes to the replica that will take the sequence backward, ahead of dY.
  void want_backward(std::int64_t q, std::int32_t s);
  void send_backward(std::int64_t q, std::int32_t s);
  bool take_turn(std::int64_t q, std::int32_t s);
  void give_turn(std::int32_t s, std::int32_t id);
  // A chunk's result is there. Results of a visit count in order: what a device sends ahead of others waits for them.
  void chunk_in(const Purpose& purpose);
  bool is_next(const Purpose& purpose);
  // One more chunk of a visit is through.
  Visit& chunk_done(std::vector<Visit>& visits, const Purpose& purpose);
  void forward_done(const Purpose& purpose);
  void backward_done(const Purpose& purpose);

  // ---- run_gradients.cpp

  // Where a stage has several groups of owners, a sequence is summed by the group of the replica that runs it backward,
  // which reads it anyway; a replica that owns nothing gives it to the group with the fewest.
  void join_group(std::int64_t q, std::int32_t s, std::int32_t id);
  bool wants(const OwnerState& of, std::int64_t q);
  // For whose sums a device that is about to run a sequence back is to keep operands: no others than those that want
  // them, lest they stay there.
  std::int32_t owner_served(std::int64_t q, std::int32_t s, std::int32_t id);
  bool has_its_hands_full(std::int32_t index);
  void send_operands(std::int32_t index, std::int64_t q);
  // One tasklet for owners on one device; `again`: counted against what the device has in hand.
  void submit_sum(const DueSum& first, std::vector<std::int32_t> all, bool again);
  // Of what is read again, as DueSum is ordered; before a stand-in's first sequence come its weights.
  std::int64_t turn_again(std::int32_t index, std::int64_t q) const;
  // Sequences that it may have been sent of that.
  [[nodiscard]] std::int64_t sums_at_once(std::int32_t id) const;
  // Sequences are still to come to it.
  bool has_visits(std::int32_t id) const;
  void sum_visited(std::int64_t q, std::int32_t s);
  void summed(const Purpose& purpose);
  void all_summed(std::int32_t index);
  void sums_in(const Purpose& purpose);
};

}  // namespace cleave::sched::stages
