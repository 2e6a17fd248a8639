// StageRun: a step in stages while it runs: its books, and what is done at every event.
//
// stage_run.cpp begins a step and takes events; run_loads.cpp loads the devices, run_sequences.cpp sends sequences
// through the stages, run_rounds.cpp goes from one round of stages to the next, run_tiles.cpp has a round run in tiles,
// run_gradients.cpp sums gradients, run_losses.cpp gives to others what lost devices had, run_relief.cpp what owners
// would be late with, run_late.cpp what slow devices would, run_progress.cpp knows how the step would go without
// losses. run_witness.cpp has visits made again by second devices, run_watchers.cpp sums.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "by_tasklet.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "estimation/rate_estimates.hpp"
#include "stages/late_watch.hpp"
#include "stages/loss_book.hpp"
#include "stages/run_head.hpp"
#include "stages/run_progress.hpp"
#include "stages/run_state.hpp"
#include "stages/run_tiles.hpp"
#include "stages/run_watchers.hpp"
#include "stages/run_witness.hpp"
#include "stages/server_work.hpp"
#include "stages/share_out.hpp"
#include "stages/stand_ins.hpp"

namespace cleave::sched::stages {

/// Devices of a fleet as they are declared.
[[nodiscard]] std::vector<fleet::DeviceProfile> profiles_of(const Fleet& fleet);
[[nodiscard]] inline Bytes with_header(Bytes payload) { return payload + plan::kMessageHeader; }

inline constexpr std::int64_t kWeightPanel =
    4'000'000;  // bytes: what is more urgent waits for no more than one of them

struct StageRun {
  Fleet& fleet;
  const model::StepGraph& graph;
  StageSchedulerOptions options;
  plan::StageWork whole, work;  // as the graph has it; with the head in the plan's parts
  plan::StagePlan plan;
  std::optional<ServerWork> server;

  std::int64_t batch, chunks = 0;
  std::uint64_t planned_for = 0;    // roster
  bool planned_all_trusted = true;  // nobody was found out since
  std::vector<StageState> stage;
  std::vector<OwnerState> owner;
  std::vector<Visit> forward, backward;            // [stage * batch + sequence]
  std::vector<DeviceBook> device;                  // by id
  DeviceBook of_server;                            // as it sums gradients
  std::vector<fleet::DeviceProfile> at_begin;      // devices that were there when the step began
  std::vector<fleet::DeviceProfile> planned_with;  // devices that `plan` was made for
  bool outgrown = false;                           // some of those are gone, and there is no plan for the others alone
  ByTasklet<Purpose> purposes;
  std::int64_t under_way = 0;                               // of these tasklets, those that are for no pair
  Seconds last_done;                                        // when one of them was
  std::vector<Purpose> ahead;                               // chunks that came before an earlier one of their visit
  std::unordered_map<std::int64_t, SharedSum> shared_sums;  // by tasklet
  std::int64_t next_id = 0;
  std::set<DeviceId> distrusted;                          // they answered wrongly, and get no more work
  std::vector<std::pair<TaskletId, std::int32_t>> loads;  // weights, and memory that is kept for the step
  std::int32_t lowest = 0;                                // stage that goes backward
  std::int32_t phase = 0;                                 // rounds of stages, upward, then down again
  std::int64_t turns = 0;                                 // that were given on the way back
  std::int64_t through = 0;                               // sequences that have gone forward through the open round
  OpId op;                                                // that tasklets bear
  std::int32_t head = 0;                                  // its stage, or that of its first part
  std::vector<std::int32_t> missing;                      // devices that left at this moment
  std::vector<std::int32_t> homeless;                     // owners that nobody stands in for yet
  bool needy = false;                                     // nobody had room for something that was lost
  Seconds next_try;                                       // to find room for it
  Seconds last_event;
  Seconds patient_until;            // since then: what is under way takes so long
  RateEstimates rates;              // of devices, from this step and those before
  std::uint64_t rates_planned = 0;  // their version that the plan was made with
  LossBook losses;
  Seconds began;
  StepReport report;
  StageTally tally;
  Progress progress{*this};
  HeadJoin head_join{*this};
  StagesInTiles tiles{*this};
  Witnesses witnesses{*this};
  Watchers watchers{*this};
  LateWatch late_watch;
  // Devices that were late, and by what factor: others have what they had, for the rest of the step.
  std::map<std::int32_t, double> dismissed;
  std::map<std::int32_t, bool> guessed;  // devices whose rates were guessed at so, and whether they have answered since
  std::set<std::int32_t> left_out;       // they still work at what was not wanted any more when the step began
  std::set<std::int32_t> taken_back;     // of them, again: nobody else had room
  std::set<std::int32_t> slowed;         // devices that are late and keep what they have
  bool asks_to_go_on = false;            // somebody answered wrongly

  StageRun(Fleet& of, const model::StepGraph& step, plan::StagePlan layout, StageSchedulerOptions settings);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  // What follows from the plan for every step.
  void take_plan();

  bool in_parts() const { return plan.head_parts > 1; }
  // Sequences pass it forward and backward.
  bool passed_twice(std::int32_t s) const { return s >= lowest && (s < head || in_parts()); }
  // A whole head, which sequences pass once, forward and backward.
  bool passes_head(std::int32_t s) const { return s == head && !in_parts(); }
  // The visit in which a replica makes the operands of its own sums.
  Visit& summed_visit(std::int32_t s, std::int64_t q) { return visit(passes_head(s) ? forward : backward, s, q); }
  std::int32_t top() const { return static_cast<std::int32_t>(stage.size()) - 1; }
  StageState& at(std::int32_t s) { return stage[static_cast<std::size_t>(s)]; }
  DeviceBook& book(std::int32_t id) { return id == kServer ? of_server : device[static_cast<std::size_t>(id)]; }
  Visit& visit(std::vector<Visit>& visits, std::int32_t s, std::int64_t q);
  std::int64_t rows_from(std::int64_t chunk) const { return chunk * plan.chunk; }
  std::int64_t rows_to(std::int64_t chunk) const { return std::min(work.seq, (chunk + 1) * plan.chunk); }

  // A stage's gradient has two sources: its owners, and norms, whose gradients come with the sequences.
  template <class Visitor>
  void for_sources(const plan::Stage& of_plan, Visitor of_owners, Visitor of_norms) const {
    std::set<std::int64_t> seen;
    for (std::int64_t i = of_plan.first; i < of_plan.end; ++i) {
      const model::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
      for (const model::SlicedTensor& tensor : piece.tensors) {
        if (tensor.trained && seen.insert(tensor.tensor.value).second) of_owners(tensor.tensor);
      }
      for (const TensorId norm : piece.norms) of_norms(norm);
    }
  }
  void expect_sources(const plan::Stage& of_plan);

  void begin();
  // Nothing is under way that could be answered, and nobody has room for what is left.
  bool rests();
  // One that nobody holds, and that sequences have still to pass; kNobody: there is none.
  std::int32_t bare_stage();
  // When silence since the last event means that something is wrong.
  Seconds standstill(bool resting) const;
  // Silence may last for as long as all that is under way takes, one thing after another. False: it has lasted longer.
  bool still_carries();
  std::optional<plan::StagePlan> find_plan();
  // None: there is none, but those that are there can do what `plan` says, one after another.
  std::optional<plan::StagePlan> plan_for_those_there();
  // The stages of `plan` find room. Sums that find none wait until sequences have passed.
  bool can_pass() const;
  // From begin() until everything is done. Errors: Interrupted where keep_going says no; InputError where what was lost
  // finds no room, or nothing happens any more.
  void run(const KeepGoing& keep_going);

  void open_book(const fleet::DeviceProfile& profile);

  // ---- tasklets

  TaskletId submit(const Purpose& purpose, Priority priority, const plan::PanelRun& run, Bytes resident, bool keeps,
                   StageItem item);

  // A tasklet is answered, or is not wanted any more.
  void remove_purpose(TaskletId tasklet, bool answered = false);

  // Weights stay, with the memory that goes with them, until the step ends. They need no answer: a link carries them
  // before what uses them.
  TaskletId load(const Purpose& purpose, Urgency urgency, Bytes weights, Bytes memory, StageItem item);
  static plan::PanelRun run_of_weights(Bytes weights);

  // What a replica holds beside weights: a chunk at work, and places for sequences.
  Bytes places(const plan::StageCost& cost, const Host& host) const;
  void hold_places(const plan::StageCost& cost, Host& host, std::int32_t s);
  void release_places(Host& host);

  void open_stages();
  // Of the open round. False: some are not there.
  bool load_replicas();

  // The weights of a stage that has a chunk now, and those of its owners.
  void bring_weights(std::int32_t s);

  void add_host(std::int32_t s, const plan::StageReplica& replica, bool helps);

  // Of the open round, where it goes back. False: some are not there.
  bool load_owners();

  // ---- rounds of stages (plan::StagePlan)

  std::int64_t open_round() const;
  bool is_open(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].round == open_round(); }
  // Sequences go back through the open round, and gradients are summed.
  bool goes_back() const { return phase >= plan.rounds() - 1; }
  bool is_last_phase() const;
  std::int32_t lowest_open() const;
  std::int32_t highest_open() const;
  bool phase_is_over();
  void begin_next_phase();
  // Devices give back what they hold of the open round.
  void close_round();
  // What has come to the stages of the open round while they were closed.
  void enter_round();

  // ---- stages in tiles

  bool runs_in_tiles(std::int32_t s) const { return plan.stages[static_cast<std::size_t>(s)].tiles; }

  std::int32_t add_owner(std::int32_t id, std::int32_t s, bool replica, bool partial,
                         std::vector<plan::PieceSlice> slices, std::vector<std::int64_t> sequences, bool guest = false);
  void load_owner(std::int32_t index);
  // What an owner's role takes on its device.
  Bytes memory_of(const OwnerState& of) const;

  // Where a stage has several groups of owners, a sequence is summed by the group of the replica that runs it backward,
  // which reads it anyway; a replica that owns nothing gives it to the group with the fewest.
  void join_group(std::int64_t q, std::int32_t s, std::int32_t id);

  // All sequences that have no group yet get one.
  void settle_groups(std::int32_t s);

  // ---- sequences

  // The replica that will be done with a sequence first, of those with room for it.
  Host* choose(std::int32_t s, std::int64_t Host::*slots);

  bool place_visit(Visit& of, std::int32_t s, std::int64_t Host::*slots);
  void take_visit(Visit& of, std::int32_t s, std::int64_t Host::*slots, const Host& host);
  Host* keeper(std::int64_t q, std::int32_t s);
  void leave_summed(std::int64_t q, std::int32_t s);

  // The sequences that wait for room at a stage take what there is, the first ones first.
  void place_waiting(std::set<std::int64_t>& waiting, std::vector<Visit>& visits, std::int32_t s,
                     std::int64_t Host::*slots, void (StageRun::*begin_visit)(std::int64_t, std::int32_t));

  // A chunk's result is there. Results of a visit count in order: what a device sends ahead of others waits for them.
  void chunk_in(const Purpose& purpose);
  bool is_next(const Purpose& purpose);
  // One more chunk of a visit is through.
  Visit& chunk_done(std::vector<Visit>& visits, const Purpose& purpose);

  void leave_visit(const Visit& of, std::int32_t s, std::int64_t Host::*slots);

  void arrive_forward(std::int64_t q, std::int32_t s);
  void enter_forward(std::int64_t q, std::int32_t s);

  void send_forward(std::int64_t q, std::int32_t s);

  void forward_done(const Purpose& purpose);

  void place_waiting_forward(std::int32_t s);

  // X goes to the replica that will take the sequence backward, ahead of dY.
  void want_backward(std::int64_t q, std::int32_t s);

  void open_backward(std::int64_t q, std::int32_t s);

  void arrive_backward(std::int64_t q, std::int32_t s);

  void send_backward(std::int64_t q, std::int32_t s);
  bool take_turn(std::int64_t q, std::int32_t s);
  void give_turn(std::int32_t s, std::int32_t id);

  void backward_done(const Purpose& purpose);

  void place_waiting_backward(std::int32_t s);

  // A sequence is through at the lowest stage.
  void bottom_done();

  void norms_done(std::int32_t s);

  // ---- gradients

  bool wants(const OwnerState& of, std::int64_t q);
  // For whose sums a device that is about to run a sequence back is to keep operands: no others than those that want
  // them, lest they stay there.
  std::int32_t owner_served(std::int64_t q, std::int32_t s, std::int32_t id);
  bool has_its_hands_full(std::int32_t index);

  // X and dY of a sequence at a stage are at the server: owners get it that will not run it, or did not.
  void sum_elsewhere(std::int64_t q, std::int32_t s);

  void send_operands(std::int32_t index, std::int64_t q);
  // What has passed before, when the device has time for it.
  void send_again(std::int32_t index, std::int64_t q, std::int32_t loss);
  // One tasklet for owners on one device; `again`: counted against what the device has in hand.
  void submit_sum(const DueSum& first, std::vector<std::int32_t> all, bool again);
  // Of what is read again, as DueSum is ordered; before a stand-in's first sequence come its weights.
  std::int64_t turn_again(std::int32_t index, std::int64_t q) const {
    return owner[static_cast<std::size_t>(index)].rank * (batch + 1) + 1 + q;
  }
  // Sequences that it may have been sent of that.
  [[nodiscard]] std::int64_t sums_at_once(std::int32_t id) const;
  void send_due(std::int32_t id);
  // Sequences are still to come to it.
  bool has_visits(std::int32_t id) const;

  // A sequence has passed: a replica that ran it and owns slices has its operands.
  void own_visited(std::int64_t q, std::int32_t s);
  void sum_visited(std::int64_t q, std::int32_t s);

  void summed(const Purpose& purpose);

  void all_summed(std::int32_t index);
  void send_sums(std::int32_t index);

  void sums_in(const Purpose& purpose);

  void pass_on_room(const OwnerState& of);

  // Of one owner of a stage nothing more is to come.
  void gradient_in(std::int32_t s);

  // ---- second devices

  bool pairs_left() const { return !witnesses.empty() || !watchers.empty(); }
  // Nothing but second devices is under way.
  bool only_pairs_left() const { return under_way == 0 && pairs_left() && missing.empty() && !needy; }
  // Owners have changed hands, and devices are gone or new.
  void look_at_pairs();
  // A second device has answered, or will not.
  void settle_pair(const Purpose& purpose);
  void lose_pair(const Purpose& purpose);
  void begin_updates();

  // Of an owner that neither sums nor watches any more the memory is free.
  void leave_role(const OwnerState& of);

  // ---- losses

  std::vector<Candidate> candidates();
  // And the server, where it may stand in for a device.
  std::vector<Candidate> with_server(std::vector<Candidate> devices, std::span<const LostSums> lost);
  // Whether the server, busy for so long, has time for what is lost, and for much of what will be if losses go on.
  bool server_keeps_up(Seconds busy, std::span<const LostSums> lost);
  Seconds server_takes(const plan::OwnerCost& cost, std::int64_t sequences) const;
  // Whether what a device acknowledges waits for its uplink, or did until now.
  [[nodiscard]] bool acknowledges_late(const DeviceBook& on) const;
  // Sequences that come for an owner before it on its device too.
  std::int64_t read_for_others(const OwnerState& of);

  void give_back(TaskletId held, std::int32_t id, Bytes memory);
  void give_up_weights(const Host& host, std::int32_t s);

  // Replicas that no sequence will come to any more keep their weights, as long as nobody needs the memory.
  void retire_replicas();

  // Its weights are of no use to what is still to be done there.
  bool may_go(const Host& host, std::int32_t s) const;

  // Free slots of a replica, beyond the least number.
  static std::pair<std::int64_t, std::int64_t> lendable(const Host& host);

  // Slots give way until so much of a device's memory is free.
  void make_room(std::int32_t id, Bytes need, std::int32_t keeps);

  // Devices that are there and trusted, as they are declared.
  std::vector<fleet::DeviceProfile> trusted() const;
  // As they are declared, or were found to be.
  std::vector<fleet::DeviceProfile> found_profiles() const;

  // A device has not answered, or not as it should: what it holds is given up. It begins again empty-handed, gets no
  // more work in this step, or none ever.
  enum class Then { begins_again, waits, is_excluded };
  void give_up_on(std::int32_t id, Then then);
  // What it holds is not wanted any more; recover() sees to the rest.
  void take_from(std::int32_t id);
  // Nothing happens any more: devices that owe an answer are silent. False: none does.
  bool give_up_silent();

  // The device is gone, after a silence. What it had is given to others by recover(), once all that leave at this
  // moment are known.
  void lose(std::int32_t id, Seconds silent);

  void recover();
  void give_to_others(std::span<const std::int32_t> ids);

  void place_again(std::int32_t id, std::int32_t s, std::int64_t q);

  // Uplink for a stage that has lost some of it, as long as it has enough to do to be worth the weights' way.
  void call_helpers(std::int32_t s);
  // Sequences are left to pass a stage that nobody holds.
  bool lacks_replica(std::int32_t s);
  // For stages that nobody holds: nothing passes there until somebody does. False: some find no room.
  bool call_replicas();
  // For those, and once all have found room for the others.
  void call_all_helpers();
  // Nobody owns these slices, until stand_in() finds somebody.
  void wait_for_room(std::int32_t index);
  // Nothing was summed yet, and others can begin it later.
  bool can_wait(const OwnerState& of) const;
  // Sums that can wait leave a device, which then has room to hold the stage. False: that makes no room.
  bool make_way(std::int32_t s);

  // dY of a sequence is complete.
  bool has_gradient(std::int32_t s, std::int64_t q);

  // What homeless owners had summed is summed again by others, from the boundaries that the server kept.
  void stand_in();
  // From now: what is lost, and would be made good later than that, is held back.
  Seconds patience();

  // What was lost at this moment becomes records, one a stage; their numbers.
  std::vector<int> record_losses();
  // Of an owner, if its device were lost now.
  LostSums lost_sums_of(std::int32_t index);

  // Of a lost owner's slices those stay its own whose sums are at the server.
  void keep_arrived(std::int32_t index);

  void replace(std::int32_t index, std::span<const OwnerPart> parts, Seconds in_by);

  // Parts of a stage's sums go to those who make them.
  void deal_out(std::int32_t s, bool partial, const std::vector<std::int64_t>& sequences,
                std::span<const OwnerPart> parts, std::int32_t loss, Seconds in_by, std::int32_t handed_on = 0);

  // What devices other than `but` would have of some sequences at a stage anyway.
  std::vector<Beside> beside(std::int32_t s, std::span<const std::int64_t> its, std::int32_t but);

  void add_stand_in(const OwnerPart& part, std::int32_t s, bool partial, std::vector<std::int64_t> its,
                    std::int32_t loss, Seconds in_by, std::int32_t handed_on);

  // ---- devices that turn out slow

  // Those whose work would decide when the step ends are treated as lost until it has ended.
  void look_for_late();
  // From now, until it would be done with what it has.
  double end_of_late(const LateDevice& one, const plan::DeviceState& state);
  // Takes out who keeps the work all the same: whoever has room would be later, or nobody has. `ends`: of each of
  // `late`.
  void keep_unless_sooner(std::vector<LateDevice>& late, std::vector<double>& ends);
  bool others_can(const std::vector<LateDevice>& late, std::size_t& who);
  std::vector<plan::DeviceState> believed() const;
  // Of those dismissed in the last step, who will take a while yet to be done with it.
  std::set<std::int32_t> still_at_work() const;
  // What its rates are, and whether it took far too long.
  void measure_answer(const Event& event);
  // For whoever chooses devices.
  void slow_down(std::int32_t id, double factor);
  // Of a device that has answered nothing yet: its weights may be there so late.
  void expect_weights(std::int32_t id, Seconds in);
  // The next step is planned for what it did, until answers tell.
  void believe_late(const LateDevice& one);
  // Those that were dismissed get work again, where nobody else can do it.
  void take_back();

  // ---- relief

  struct LateOwner {
    std::int32_t index = 0;
    double end = 0;   // from now: its sums are expected
    double sums = 0;  // seconds of its device's uplink for its sums, and for all that its device sends until then
    double all_sums = 0;
    double loading = 0;  // seconds until its weights are there
    double up_busy = 0;  // seconds until its device's uplink has sent what is ready
    double pace = 0;     // seconds a sequence, beside what is more urgent
  };
  // Of a device that became an owner since the step began: until its weights are there.
  double loading_left(const OwnerState& of);
  // How late an owner may be before it is relieved.
  [[nodiscard]] Seconds late_by() const;
  // From now, until the step is to end, and whatever stands in for others.
  double due_in();
  // Seconds for which a device's downlink, processor and uplink have work.
  struct Busy {
    double reads = 0, computes = 0, sums = 0;
  };
  // What a stand-in's device is to do for others that it stands in for, once it has done its part for this one.
  Busy stood_in_after(const OwnerState& of);
  // The owner whose sums will come last, of those that still have sequences to sum.
  std::optional<LateOwner> latest_owner(std::span<const Candidate> all);
  // Where it would hold up the step, others take what it can spare. False: nobody would be much sooner.
  bool relieve_one();
  void relieve();
  // A sum under way that is for one owner only.
  bool is_alone(const Purpose& sum) const;
  // Its sequences that are neither summed nor next; what is sent of them is forgotten.
  std::vector<std::int64_t> spare_of(std::int32_t index, std::int64_t keeps);
  void forget_sums(std::int32_t index, const std::vector<bool>& of_these);
  Seconds next_relief;

  // Looks again for room, for stages without any replica and for owners that nobody stands in for.
  void try_again();
  Seconds retry_every() const;

  void join(DeviceId id);

  // ---- events

  void handle(const Event& event);

  // What a tasklet that is done leads to.
  void carry_on(const Purpose& purpose);

  [[noreturn]] void explain_standstill();
  // Of nothing that is under way an answer is wanted any more.
  void forget_all();
  // Forgets all that is under way, but for kernels, which are waited for.
  void give_up();

  bool complete() const;
};

}  // namespace cleave::sched::stages
