// StageRecovery: work of lost devices is given to others.
//
// The server keeps every boundary, so nothing on a device is the only copy (docs/stage_layouts.md, "Losses"). Sequences
// go to other replicas, a stage that lacks uplink gets helpers, and sums are recomputed by stand-ins. What finds no
// room waits, and is tried again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "stages/run_state.hpp"
#include "stages/share_out.hpp"

namespace cleave::sched::stages {

struct StageRun;

class StageRecovery {
 public:
  explicit StageRecovery(StageRun& run) : run_(run) {}

  void begin();

  /// A device has not answered, or not as it should: what it holds is given up. It begins again empty-handed, unless
  /// that has come too often, gets no more work in this step, or none ever.
  enum class Then { begins_again, waits, is_excluded };
  void give_up_on(std::int32_t id, Then then);
  /// Nothing happens any more: gives up on all devices that owe an answer. False: there are none.
  bool give_up_silent();
  /// Takes all work from a device that is still there; recover() is to follow.
  void take_from(std::int32_t id);
  /// A device is gone; it was silent for so long before. recover() gives its work to others, once all devices that
  /// leave at this moment are known.
  void lose(std::int32_t id, Seconds silent);
  /// Errors: InputError where devices are lost so often that the step will not end.
  void recover();
  /// Devices have left at this moment, and recover() is to come.
  [[nodiscard]] bool is_pending() const { return !missing_.empty(); }
  /// As a round begins, devices of the plan are missing: gives their part to others.
  void fill_gaps();

  void join(DeviceId id);
  /// Devices without work have come: they may have room for something.
  void use_newcomers();

  /// The owner is lost; its slices wait for stand-ins.
  void wait_for_room(std::int32_t index);
  [[nodiscard]] bool has_unassigned() const { return !unassigned_.empty(); }
  /// Whether sequences still have to pass the stage, and it has no replica.
  bool lacks_replica(std::int32_t s);
  /// Whether nobody had room for something that was lost.
  [[nodiscard]] bool lacks_room() const { return lacks_room_; }
  /// When room is to be looked for again; an event brings that forward.
  [[nodiscard]] Seconds next_try() const { return next_try_; }
  [[nodiscard]] bool is_due() const;
  void note_event();
  /// Looks for room again, for stages without replicas and for lost owners without stand-ins.
  void try_again();

  /// What would be lost with an owner if its device were lost now.
  LostSums lost_sums_of(std::int32_t index);
  /// Devices other than `but` that run some of these sequences at a stage, or are sent their X and dY, anyway.
  std::vector<Reader> readers_of(std::int32_t s, std::span<const std::int64_t> its, std::int32_t but);
  /// Makes the devices of `parts` stand-ins, which share slices and sequences as the parts say.
  void deal_out(std::int32_t s, bool partial, const std::vector<std::int64_t>& sequences,
                std::span<const OwnerPart> parts, std::int32_t loss, Seconds in_by, std::int32_t handed_on = 0);

 private:
  // Makes a record of each stage that has lost something at this moment. Returns the records' numbers.
  std::vector<int> record_losses();
  void give_to_others(std::span<const std::int32_t> ids);
  void place_again(std::int32_t id, std::int32_t s, std::int64_t q);

  // Adds replicas to a stage that has lost uplink, as long as what is left to do there is worth sending weights.
  void call_helpers(std::int32_t s);
  // The same for stages without any replica, which nothing can pass. False: nobody has room for some of them.
  bool call_replicas();
  // For stages without replicas first; once all of those have one, for the others.
  void call_all_helpers();
  // Frees memory of a device for a stage without replicas: owners there that can wait are lost, and wait for room.
  // False: that would not be enough.
  bool make_way(std::int32_t s);
  // Whether an owner has not summed anything yet, so that another one can begin later.
  bool can_wait(const OwnerState& of) const;

  // Finds stand-ins for lost owners. They sum again all that those had summed, from the boundaries at the server.
  void stand_in();
  // Time from now within which stand-ins are to be done; owners for which there are none so quick wait for room.
  Seconds patience();
  // A lost owner keeps only those slices whose sums are not at the server; the others are done.
  void keep_arrived(std::int32_t index);
  void replace(std::int32_t index, std::span<const OwnerPart> parts, Seconds in_by);
  void add_stand_in(const OwnerPart& part, std::int32_t s, bool partial, std::vector<std::int64_t> its,
                    std::int32_t loss, Seconds in_by, std::int32_t handed_on);
  Seconds retry_every() const;

  StageRun& run_;
  std::vector<std::int32_t> missing_;     // devices that left at this moment
  std::vector<std::int32_t> unassigned_;  // lost owners without stand-ins
  bool lacks_room_ = false;
  Seconds next_try_;
  std::int64_t lost_ = 0;                             // losses of devices in this step
  std::map<std::int32_t, std::int64_t> begun_again_;  // how often, of those that stayed
};

}  // namespace cleave::sched::stages
