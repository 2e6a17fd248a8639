// Relief: once something has been lost, owners that would hold up the step give sequences to other devices.
//
// Early losses go to devices that have memory at that time, and these may be slow. Later, quicker devices have done
// work of their own, and have room. A relieved owner keeps what it has summed: it sends partial sums, and others sum
// the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "stages/run_state.hpp"
#include "stages/share_out.hpp"
#include "stages/stand_ins.hpp"

namespace cleave::sched::stages {

struct StageRun;

class Relief {
 public:
  explicit Relief(StageRun& run) : run_(run) {}

  void begin() { next_ = Seconds(0); }
  [[nodiscard]] bool is_due() const;
  void relieve();

 private:
  struct LateOwner {
    std::int32_t index = 0;
    double end = 0;       // seconds from now until its sums are at the server
    double sums = 0;      // seconds of its device's uplink for its sums
    double all_sums = 0;  // the same for all sums that the device sends until then
    double loading = 0;   // seconds until its weights are there
    double up_busy = 0;   // seconds until its device's uplink has sent what is ready
    double pace = 0;      // seconds of downlink a sequence, in the gaps of what is more urgent
  };
  // What a late owner gives to others: some of its sequences, or all of its role.
  struct Handover {
    bool keeps = false;  // it keeps the other sequences
    std::vector<std::int64_t> sequences;
    SharedOut shared;
  };
  // Seconds of work for a device's downlink, processor and uplink.
  struct Busy {
    double reads = 0, computes = 0, sums = 0;
  };
  // How late an owner may be before it is relieved.
  [[nodiscard]] Seconds late_by() const;
  // Seconds from now until the step is to end, or until the last stand-in's sums are due if that is later.
  double due_in();
  // Work of a stand-in's device for its later roles as a stand-in, which come after this one.
  Busy stood_in_after(const OwnerState& of);
  // The owner whose sums will come last, of those that still have sequences to sum; none where it is not late.
  std::optional<LateOwner> latest_owner(std::span<const Candidate> all);
  // Gives sequences of the latest owner, or its whole role, to others. False: none is late, or nobody would be much
  // sooner.
  bool relieve_one();
  // What the owner should give to others, if these, of `all`, are much sooner done.
  std::optional<Handover> best_handover(const LateOwner& late, std::vector<Candidate> all);
  void hand_over(std::int32_t index, const Handover& handover);
  // Whether a sum under way is for one owner only.
  bool is_alone(const Purpose& sum) const;
  // The sequences that an owner has not summed, without the first `keeps` of them.
  std::vector<std::int64_t> spare_of(std::int32_t index, std::int64_t keeps);
  // Forgets what an owner was sent, or is to be sent, of these sequences.
  void forget_sums(std::int32_t index, const std::vector<bool>& of_these);

  StageRun& run_;
  Seconds next_;
};

}  // namespace cleave::sched::stages
