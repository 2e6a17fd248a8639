// Relief: owners that would hold up the step, once something has been lost, give sequences to others.
//
// What is lost early goes to whoever has memory then, and may be slow; later, quicker devices are done with work of
// their own. What an owner has summed stays its own: it sends partial sums, and others sum the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "stages/run_state.hpp"
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
    double end = 0;   // from now: its sums are expected
    double sums = 0;  // seconds of its device's uplink for its sums, and for all that its device sends until then
    double all_sums = 0;
    double loading = 0;  // seconds until its weights are there
    double up_busy = 0;  // seconds until its device's uplink has sent what is ready
    double pace = 0;     // seconds a sequence, beside what is more urgent
  };
  // Seconds for which a device's downlink, processor and uplink have work.
  struct Busy {
    double reads = 0, computes = 0, sums = 0;
  };
  // How late an owner may be before it is relieved.
  [[nodiscard]] Seconds late_by() const;
  // From now, until the step is to end, and whatever stands in for others.
  double due_in();
  // What a stand-in's device is to do for others that it stands in for, once it has done its part for this one.
  Busy stood_in_after(const OwnerState& of);
  // The owner whose sums will come last, of those that still have sequences to sum.
  std::optional<LateOwner> latest_owner(std::span<const Candidate> all);
  // Where it would hold up the step, others take what it can spare. False: nobody would be much sooner.
  bool relieve_one();
  // A sum under way that is for one owner only.
  bool is_alone(const Purpose& sum) const;
  // Its sequences that are neither summed nor next; what is sent of them is forgotten.
  std::vector<std::int64_t> spare_of(std::int32_t index, std::int64_t keeps);
  void forget_sums(std::int32_t index, const std::vector<bool>& of_these);

  StageRun& run_;
  Seconds next_;
};

}  // namespace cleave::sched::stages
