// Recovery: what lost devices had is given to others.
//
// The server keeps every boundary, so nothing on a device is the only copy (docs/stage_layouts.md, "Losses"). Sequences
// go to other replicas, a stage that lacks uplink gets helpers, and sums are made again by stand-ins. What finds no room
// waits, and is tried again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stages/run_state.hpp"
#include "stages/share_out.hpp"

namespace cleave::sched::stages {

struct StageRun;

class Recovery {
 public:
  explicit Recovery(StageRun& run) : run_(run) {}

  void begin();

  /// A device has not answered, or not as it should: what it holds is given up. It begins again empty-handed, gets no
  /// more work in this step, or none ever.
  enum class Then { begins_again, waits, is_excluded };
  void give_up_on(std::int32_t id, Then then);
  /// Nothing happens any more: devices that owe an answer are silent. False: none does.
  bool give_up_silent();
  /// What it holds is not wanted any more; recover() sees to the rest.
  void take_from(std::int32_t id);
  /// The device is gone, after a silence. What it had is given to others by recover(), once all that leave at this
  /// moment are known.
  void lose(std::int32_t id, Seconds silent);
  /// Errors: InputError where devices are lost so often that the step will not end.
  void recover();
  /// Devices have left at this moment, and recover() is to come.
  [[nodiscard]] bool is_pending() const { return !missing_.empty(); }
  /// Devices that the plan counts on are not there as a round begins: others do their part.
  void fill_gaps();

  void join(DeviceId id);
  /// Devices are there that had no work until now.
  void use_newcomers();

  /// Nobody owns these slices, until somebody is found.
  void wait_for_room(std::int32_t index);
  [[nodiscard]] bool has_unassigned() const { return !unassigned_.empty(); }
  /// Sequences still have to pass the stage, and no device holds it.
  bool lacks_replica(std::int32_t s);
  /// Nobody had room for something that was lost.
  [[nodiscard]] bool lacks_room() const { return lacks_room_; }
  /// When room is to be looked for again; an event brings that forward.
  [[nodiscard]] Seconds next_try() const { return next_try_; }
  [[nodiscard]] bool is_due() const;
  void note_event();
  /// Looks again for room, for stages without any replica and for owners that nobody stands in for.
  void try_again();

  /// Of an owner, if its device were lost now.
  LostSums lost_sums_of(std::int32_t index);
  /// What devices other than `but` would have of some sequences at a stage anyway.
  std::vector<Reader> readers_of(std::int32_t s, std::span<const std::int64_t> its, std::int32_t but);
  /// Parts of a stage's sums go to those who make them.
  void deal_out(std::int32_t s, bool partial, const std::vector<std::int64_t>& sequences,
                std::span<const OwnerPart> parts, std::int32_t loss, Seconds in_by, std::int32_t handed_on = 0);

 private:
  // What was lost at this moment becomes records, one a stage; their numbers.
  std::vector<int> record_losses();
  void give_to_others(std::span<const std::int32_t> ids);
  void place_again(std::int32_t id, std::int32_t s, std::int64_t q);

  // Uplink for a stage that has lost some of it, as long as it has enough to do to be worth the weights' way.
  void call_helpers(std::int32_t s);
  // For stages that nobody holds: nothing passes there until somebody does. False: some find no room.
  bool call_replicas();
  // For those, and once all have found room for the others.
  void call_all_helpers();
  // Sums that can wait leave a device, which then has room to hold the stage. False: that makes no room.
  bool make_way(std::int32_t s);
  // Nothing was summed yet, and others can begin it later.
  bool can_wait(const OwnerState& of) const;

  // What homeless owners had summed is summed again by others, from the boundaries that the server kept.
  void stand_in();
  // From now: what is lost, and would be made good later than that, is held back.
  Seconds patience();
  // Of a lost owner's slices those stay its own whose sums are at the server.
  void keep_arrived(std::int32_t index);
  void replace(std::int32_t index, std::span<const OwnerPart> parts, Seconds in_by);
  void add_stand_in(const OwnerPart& part, std::int32_t s, bool partial, std::vector<std::int64_t> its,
                    std::int32_t loss, Seconds in_by, std::int32_t handed_on);
  Seconds retry_every() const;

  StageRun& run_;
  std::vector<std::int32_t> missing_;     // devices that left at this moment
  std::vector<std::int32_t> unassigned_;  // owners that nobody stands in for yet
  bool lacks_room_ = false;
  Seconds next_try_;
  std::int64_t lost_ = 0;  // devices in this step, each as often as it was
};

}  // namespace cleave::sched::stages
