// StageRun: a step in stages while it runs: its books, and what is done at every event.
//
// stage_run.cpp plans and begins a step, and takes events. Without losses it needs four files more: run_loads.cpp loads
// the devices, run_sequences.cpp sends sequences through the stages, run_gradients.cpp has owners sum what has passed,
// run_rounds.cpp goes from one round of stages to the next. run_room.cpp frees memory, and makes room.
//
// All else is done by components. A component keeps the state that only it needs, and reads and changes the books in
// StageRun. It calls another component through StageRun: `run_.recovery.recover()`.
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

/// Bytes of a panel of weights or sums: more urgent messages wait for no more than one panel.
inline constexpr std::int64_t kWeightPanel = 4'000'000;

struct StageRun {
  StageRun(Fleet& of, const model::StepGraph& step, plan::StagePlan layout, StageSchedulerOptions settings);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  /// From begin() until everything is done. Errors: Interrupted where keep_going() is false; InputError where nobody
  /// has room for what was lost, or where nothing happens any more.
  void run(const KeepGoing& keep_going);
  void begin();
  void handle(const Event& event);
  /// Updates wait, all gradients are there and all second devices have answered.
  bool may_update();
  [[nodiscard]] bool complete() const;
  /// Forgets all tasklets under way, and waits for the server's kernels that have begun.
  void give_up();

  // ---- What is to be done: the graph, and the plan, which is kept until the fleet or its rates change.

  Fleet& fleet;
  const model::StepGraph& graph;
  StageSchedulerOptions options;
  plan::StageWork whole, work;  // pieces of the graph; the same with the head cut into the plan's parts
  plan::StagePlan plan;
  std::int64_t batch, chunks = 0;  // sequences; chunks of a sequence
  std::int32_t lowest = 0;         // lowest stage with a backward pass
  std::int32_t head = 0;           // stage of the head, or of its first part
  OpId op;                         // Tasklet::op of all tasklets of the step

  bool in_parts() const { return plan.head_parts > 1; }
  // Whether sequences pass the stage twice: forward, and later backward.
  bool passed_twice(std::int32_t s) const { return s >= lowest && (s < head || in_parts()); }
  // Whether the stage is a whole head: a sequence passes it once, forward and backward in one go.
  bool passes_head(std::int32_t s) const { return s == head && !in_parts(); }
  bool runs_in_tiles(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].tiles; }
  std::int64_t rows_from(std::int64_t chunk) const { return chunk * plan.chunk; }
  std::int64_t rows_to(std::int64_t chunk) const { return std::min(work.seq, (chunk + 1) * plan.chunk); }

  // ---- What the plan was made for, and what has been learned of the fleet: kept from step to step.

  std::uint64_t planned_for = 0;                   // Fleet::roster() that `plan` was made for
  bool planned_all_trusted = true;                 // no device was distrusted since `plan` was made
  std::vector<fleet::DeviceProfile> planned_with;  // devices that `plan` was made for
  bool outgrown = false;                           // some of those are gone, and there is no plan for the others alone
  RateEstimates rates;                             // of devices, from this step and those before
  std::uint64_t rates_planned = 0;                 // rates.version() that `plan` was made with
  std::set<DeviceId> distrusted;                   // devices that answered wrongly: they get no more work

  // The fleet's devices at estimated rates.
  std::vector<plan::DeviceState> believed() const;
  std::vector<fleet::DeviceProfile> found_profiles() const;
  // found_profiles() without devices that are distrusted, or left out as late.
  std::vector<fleet::DeviceProfile> trusted() const;

  // ---- The books of a step: where every sequence is, what every device has in hand, what every owner has summed.

  std::vector<StageState> stage;
  OwnerState& owner_at(std::int32_t index) { return owner[static_cast<std::size_t>(index)]; }
  const OwnerState& owner_at(std::int32_t index) const { return owner[static_cast<std::size_t>(index)]; }
  std::vector<OwnerState> owner;
  std::vector<Visit> forward, backward;        // [stage * batch + sequence]
  std::vector<DeviceBook> device;              // by id
  DeviceBook of_server;                        // the server as a stand-in for owners
  std::vector<fleet::DeviceProfile> at_begin;  // devices that were there when the step began
  std::optional<ServerWork> server;

  std::int32_t top() const { return static_cast<std::int32_t>(stage.size()) - 1; }
  StageState& at(std::int32_t s) { return stage[static_cast<std::size_t>(s)]; }
  DeviceBook& book(std::int32_t id) { return id == kServer ? of_server : device[static_cast<std::size_t>(id)]; }
  void open_book(const fleet::DeviceProfile& profile);
  Visit& visit(std::vector<Visit>& visits, std::int32_t s, std::int64_t q);
  // The visit whose X and dY a replica sums without being sent them: the backward one, or at a whole head the only one.
  Visit& summed_visit(std::int32_t s, std::int64_t q) { return visit(passes_head(s) ? forward : backward, s, q); }
  // Whether dY of a sequence at a stage is complete, at the server.
  bool has_gradient(std::int32_t s, std::int64_t q);

  // ---- Tasklets: what is under way, what each is for, and what stays on devices until the step ends.

  ByTasklet<Purpose> purposes;
  std::int64_t under_way = 0;                               // tasklets under way, without those of second devices
  Seconds last_done;                                        // when the last of these was answered
  std::vector<Purpose> ahead;                               // chunks that came before an earlier one of their visit
  std::unordered_map<std::int64_t, SharedSum> shared_sums;  // by tasklet
  std::vector<std::pair<TaskletId, std::int32_t>> loads;    // weights, and memory that is kept for the step
  std::int64_t next_id = 0;

  TaskletId submit(const Purpose& purpose, Priority priority, const plan::PanelRun& run, Bytes resident, bool keeps,
                   StageItem item);
  // A tasklet is answered, or its answer is not wanted any more.
  void remove_purpose(TaskletId tasklet, bool answered = false);

  // ---- Rounds of stages (plan::StagePlan): from the lowest to the highest, then down again.

  std::int32_t phase = 0;    // rounds entered since the step began, less one
  std::int64_t through = 0;  // sequences that have gone forward through the open round

  std::int64_t open_round() const;
  bool is_open(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].round == open_round(); }
  // Whether sequences pass the open round backward (too), and gradients are summed.
  bool goes_back() const { return phase >= plan.rounds() - 1; }
  bool is_last_phase() const;
  std::int32_t lowest_open() const;
  std::int32_t highest_open() const;

  // ---- The course of a step, and its report.

  Seconds began;
  std::vector<Usage> used_before;  // by device, when the step began
  Seconds last_event;
  LossBook losses;
  StepReport report;
  StageTally tally;
  bool asks_to_go_on = false;  // keep_going() is asked next: a device answered wrongly, or may_update()

  // ---- Components.

  Progress progress{*this};         // how far the step is, how long the rest takes, what losses cost
  HeadJoin head_join{*this};        // where the parts of a head meet
  StagesInTiles tiles{*this};       // rounds that run in tiles
  Witnesses witnesses{*this};       // visits recomputed by second devices
  Watchers watchers{*this};         // sums recomputed by second devices
  Candidates candidates{*this};     // what every device could take over
  StageRecovery recovery{*this};    // work of lost devices is given to others
  Relief relief{*this};             // owners that would be late give sequences to others
  LateDevices late_devices{*this};  // devices that turn out slow

  // ---- Second devices

  bool pairs_left() const { return !witnesses.empty() || !watchers.empty(); }
  // Whether only answers of second devices are waited for.
  bool only_pairs_left() const;
  // Asks second devices that had to wait; after owners or devices have changed.
  void look_at_pairs();
  // A second device has answered; it will not answer.
  void settle_pair(const Purpose& purpose);
  void lose_pair(const Purpose& purpose);

  // ---- Weights, and memory for what passes (run_loads.cpp)

  // Memory of a replica beside its weights: a chunk at work, and its slots for sequences.
  Bytes places(const plan::StageCost& cost, const ActiveReplica& replica) const;
  void hold_places(const plan::StageCost& cost, ActiveReplica& replica, std::int32_t s);
  void release_places(ActiveReplica& replica);
  // By how much places() grows if owners on the device hold `held` more of each open sequence.
  Bytes places_beside(const plan::StageCost& cost, const ActiveReplica& replica, Bytes held) const;
  // Takes that memory, from now on.
  void widen_places(std::int32_t s, ActiveReplica& replica, Bytes held);
  void add_replica(std::int32_t s, const plan::StageReplica& replica, bool helps);
  std::int32_t add_owner(std::int32_t id, std::int32_t s, bool replica, bool partial,
                         std::vector<plan::PieceSlice> slices, std::vector<std::int64_t> sequences,
                         bool shares_room = false);
  void load_owner(std::int32_t index);
  // Memory that an owner's role takes on its device.
  Bytes memory_of(const OwnerState& of) const;

  // ---- Room (run_room.cpp)

  // Frees the slots of replicas that no sequence will come to any more. They keep their weights until make_room().
  void retire_replicas();
  // Whether a replica is retired, and no owner on its device still sums with its weights.
  bool may_go(const ActiveReplica& replica, std::int32_t s) const;
  // Free slots of a replica beyond kLeastSlots: forward, backward.
  static std::pair<std::int64_t, std::int64_t> lendable(const ActiveReplica& replica);
  // Frees memory of a device until `need` is free, if it can: slots first, then weights of retired replicas, but not
  // those of stage `keeps`.
  void make_room(std::int32_t id, Bytes need, std::int32_t keeps);
  // Frees the memory of an owner that neither sums nor watches any more.
  void leave_role(const OwnerState& of);

  // ---- Sequences (run_sequences.cpp)

  bool place_visit(Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots);
  // Whether some replica of the stage keeps values.
  bool keeps_values(std::int32_t s);
  // Sequences that wait for a slot at a stage get one, in order, as far as there are any.
  void place_waiting_forward(std::int32_t s);
  void place_waiting_backward(std::int32_t s);
  void send_forward(std::int64_t q, std::int32_t s);
  void open_backward(std::int64_t q, std::int32_t s);
  void arrive_backward(std::int64_t q, std::int32_t s);
  // A sequence has passed the lowest stage backward.
  void bottom_done();
  // All sequences have passed a stage backward.
  void norms_done(std::int32_t s);

  // ---- Sums of gradients (run_gradients.cpp)

  // Every sequence without a group of owners gets one.
  void settle_groups(std::int32_t s);
  // X and dY of a sequence at a stage are at the server: sends them to owners whose devices do not run the sequence.
  void sum_elsewhere(std::int64_t q, std::int32_t s);
  // A sequence has passed a stage: owners on the replica that ran it sum it there, the others are sent X and dY.
  void own_visited(std::int64_t q, std::int32_t s);
  // A sum of a sequence on the replica that ran it is made, or not wanted any more: the last one frees its slot.
  void visited_is_summed(const Purpose& sum);
  // A stand-in is due a sequence that has passed; it is sent when the device has little of that kind left to do.
  void send_again(std::int32_t index, std::int64_t q, std::int32_t loss);
  void send_due(std::int32_t id);
  void send_sums(std::int32_t index);
  // What panels [from, to) of an owner's sums are sums of.
  std::vector<plan::PieceSlice> slices_of_panels(const OwnerState& of, std::int64_t from, std::int64_t to);
  // One more owner of a stage is done.
  void gradient_in(std::int32_t s);

 private:
  // ---- stage_run.cpp

  Seconds patient_until;  // until then silence is no standstill: set by still_carries()

  // Makes another plan if the fleet, its rates or whom to trust have changed.
  void renew_plan();
  // Books and components begin a step.
  void clear_books();
  // The three kinds of events that are about work: a kernel of the server is done; a tasklet was lost or rejected; it
  // was answered.
  void kernel_done(OpId kernel);
  void not_answered(const Event& event);
  void answered(const Event& event);
  // Sets what follows from `plan` for every step.
  void take_plan();
  std::optional<plan::StagePlan> find_plan();
  // A plan for the devices of now; none where there is none, but can_pass().
  std::optional<plan::StagePlan> plan_for_those_there();
  // Whether the devices of now have room for every stage of `plan`, as stand-ins. Sums without room wait until
  // sequences have passed.
  bool can_pass() const;
  // Visits the trained parameters of a stage: those whose gradients owners sum, and norms, whose gradients come with
  // the sequences.
  using Visitor = std::function<void(TensorId)>;
  void for_sources(const plan::Stage& of_plan, const Visitor& of_owners, const Visitor& of_norms) const;
  // A tasklet was answered: does what follows from it.
  void carry_on(const Purpose& purpose);
  // Whether nothing is under way that could be answered, and nobody has room for what is left.
  bool is_stuck();
  // The lowest stage that sequences have still to pass and that has no replica, or kNobody.
  std::int32_t stage_without_replica();
  // The time at which silence since the last event means that something is wrong.
  Seconds standstill(bool stuck) const;
  // Whether all that is under way, one thing after another, takes longer than the silence has lasted. If so, sets
  // patient_until.
  bool still_carries();
  [[noreturn]] void explain_standstill();
  // Forgets all tasklets under way.
  void forget_all();

  // ---- run_rounds.cpp

  bool phase_is_over();
  void begin_next_phase();
  // Devices free what they hold for the open round.
  void close_round();
  // Sends the boundaries that came for the stages of the open round before it was open.
  void enter_round();

  // ---- run_loads.cpp, run_room.cpp

  void open_stages();
  // Replicas, or owners if it goes back, of the open round get their memory and weights. False: some devices are gone.
  bool load_replicas();
  bool load_owners();
  // Sends weights, which with `memory` stay on the device until they are released. They are not answered: a link
  // carries them before what uses them.
  TaskletId load(const Purpose& purpose, Urgency urgency, Bytes weights, Bytes memory, StageItem item);
  // Sends the weights of a stage to its replicas and owners: its first chunk has come.
  void bring_weights(std::int32_t s);
  // Releases what a tasklet holds on a device.
  void give_back(TaskletId held, std::int32_t id, Bytes memory);
  void give_up_weights(const ActiveReplica& replica, std::int32_t s);
  // The role of an owner has ended: another owner that shared its room takes that over.
  void pass_on_room(const OwnerState& of);

  // ---- run_sequences.cpp

  std::int64_t turns = 0;  // the last Visit::turn that was given

  // The replica with a free slot that will be done with a sequence first; null where none has one.
  ActiveReplica* choose(std::int32_t s, std::int64_t ActiveReplica::*slots);
  // The replica that keeps the values of a sequence's forward pass, or null.
  ActiveReplica* keeper(std::int64_t q, std::int32_t s);
  // The visit goes to this replica.
  void take_visit(Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots, const ActiveReplica& replica);
  // The slot of a visit is free.
  void leave_visit(const Visit& of, std::int32_t s, std::int64_t ActiveReplica::*slots);
  // The same for a visit whose sums are made, and for the sequences that wait for the slot.
  void leave_summed(std::int64_t q, std::int32_t s);
  void place_waiting(std::set<std::int64_t>& waiting, std::vector<Visit>& visits, std::int32_t s,
                     std::int64_t ActiveReplica::*slots, void (StageRun::*begin_visit)(std::int64_t, std::int32_t));
  void arrive_forward(std::int64_t q, std::int32_t s);
  void enter_forward(std::int64_t q, std::int32_t s);
  // Chooses the replica that takes a sequence backward, and sends it X, ahead of dY.
  void want_backward(std::int64_t q, std::int32_t s);
  void send_backward(std::int64_t q, std::int32_t s);
  // A replica takes one sequence after another backward. take_turn(): whether it is this one's turn; give_turn(): the
  // next one's.
  bool take_turn(std::int64_t q, std::int32_t s);
  void give_turn(std::int32_t s, std::int32_t id);
  // A chunk's result is there. Results of a visit are taken in order: one that comes too early waits in `ahead`.
  void chunk_in(const Purpose& purpose);
  bool is_next(const Purpose& purpose);
  // Counts one more chunk of a visit.
  Visit& chunk_done(std::vector<Visit>& visits, const Purpose& purpose);
  void forward_done(const Purpose& purpose);
  void backward_done(const Purpose& purpose);

  // ---- run_gradients.cpp

  // Where a stage has several groups of owners, a sequence is summed by the group of the replica that runs it backward,
  // which reads it anyway; a replica that owns nothing gives it to the group with the fewest.
  void join_group(std::int64_t q, std::int32_t s, std::int32_t id);
  // Whether an owner still has to sum a sequence.
  bool wants(const OwnerState& of, std::int64_t q);
  // The owner, all or none, for whose sums a device that is about to run a sequence backward keeps X and dY
  // (StageItem::owner). Never one that does not want them: they would stay there.
  std::int32_t owner_served(std::int64_t q, std::int32_t s, std::int32_t id);
  // Its device is about to be sent a visit, and keeps X and dY for the owners of now that owner_served() names.
  void keep_for_owners(Visit& of, std::int64_t q, std::int32_t s);
  bool has_its_hands_full(std::int32_t index);
  // Whether own_visited() will have the owner sum a sequence from what its device keeps, or nobody knows that yet.
  bool sums_where_it_runs(std::int32_t index, std::int64_t q);
  void send_operands(std::int32_t index, std::int64_t q);
  // One tasklet for owners on one device; `again`: it counts in DeviceBook::summing.
  void submit_sum(const DueSum& first, std::vector<std::int32_t> all, bool again);
  // What of a device's due sums reads the same operands as `first`: of the same sequence at the same stage, in order.
  std::vector<DueSum> due_with(std::int32_t id, const DueSum& first);
  // Priority::second of a sequence for a stand-in, in the order of DueSum; q = -1: of the stand-in's weights, which
  // come before its first sequence.
  std::int64_t turn_again(std::int32_t index, std::int64_t q) const;
  // How many sums for stand-ins a device may have been sent at one time.
  [[nodiscard]] std::int64_t sums_at_once(std::int32_t id) const;
  // Whether the device is a replica of a stage that sequences have still to pass backward.
  bool has_visits(std::int32_t id) const;
  // A sequence has passed: owners on the replica that ran it sum it there.
  void sum_visited(std::int64_t q, std::int32_t s);
  void summed(const Purpose& purpose);
  void all_summed(std::int32_t index);
  void sums_in(const Purpose& purpose);
};

}  // namespace cleave::sched::stages
