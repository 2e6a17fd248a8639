// Profile: where the server's real time goes, by phase and by type of operation (`output.profile`).
//
// One thread works on a step. A moment belongs to the innermost scope that is open; what no scope claims is planning
// and scheduling. Time on the devices is not seen here: the server waits meanwhile. Switched off, a scope costs a
// branch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cleave/base/clock.hpp"
#include "cleave/base/units.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::server {

enum class Phase : std::uint8_t {
  kernel,    ///< a server kernel (norms, activations, optimizer), or a block that no device can compute
  pack,      ///< operands into messages, norm exponents included
  send,      ///< handing messages to the transport
  wait,      ///< nothing to do before something arrives; MPI moves messages meanwhile
  receive,   ///< asking for messages and decoding them, checksums included
  verify,    ///< checks of returned blocks
  place,     ///< results into their tensors, partial sums finished
  schedule,  ///< all else: planning, scheduling, books
};
inline constexpr std::size_t kPhases = 8;
[[nodiscard]] std::string_view name_of(Phase phase);

/// Real time by phase.
using PhaseTimes = std::array<Seconds, kPhases>;
/// to += times, phase by phase.
void add(const PhaseTimes& times, PhaseTimes& to);
[[nodiscard]] Seconds sum_of(const PhaseTimes& times);

/// See the file comment. Switched off at first.
class Profile {
 public:
  void enable() { enabled_ = true; }
  [[nodiscard]] bool enabled() const { return enabled_; }

  /// A step of `graph` begins or ends; no scope is open then. Steps that are not ended are left out of the sums.
  void begin_step(const model::StepGraph& graph);
  void end_step();

  /// Times of the step that ended last. They add up to its real time.
  [[nodiscard]] const PhaseTimes& last_step() const { return last_step_; }
  /// Times of all steps that ended, by Operation::type; those of no operation are under the empty type.
  [[nodiscard]] const std::map<std::string, PhaseTimes>& by_type() const { return by_type_; }
  /// Times of all steps that ended, and their number.
  [[nodiscard]] const PhaseTimes& all() const { return all_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  /// Counts the time of its own life for a phase, and for `op`, or where that is invalid for the operation of the scope
  /// around it. Requires: `profile` outlives it; scopes are nested.
  class Scope {
   public:
    Scope(Profile& profile, Phase phase, OpId op = {}) : profile_(profile.enabled_ ? &profile : nullptr) {
      if (profile_ == nullptr) return;
      outer_phase_ = profile_->phase_;
      outer_op_ = profile_->op_;
      profile_->turn_to(phase, op.valid() ? op : outer_op_);
    }
    ~Scope() {
      if (profile_ != nullptr) profile_->turn_to(outer_phase_, outer_op_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Profile* profile_;
    Phase outer_phase_ = Phase::schedule;
    OpId outer_op_;
  };

 private:
  void turn_to(Phase phase, OpId op);

  bool enabled_ = false;
  SteadyClock clock_;
  const model::StepGraph* graph_ = nullptr;
  Phase phase_ = Phase::schedule;
  OpId op_;
  Seconds since_;  // when phase_ and op_ began
  std::unordered_map<OpId, PhaseTimes> by_op_;
  PhaseTimes last_step_{}, all_{};
  std::map<std::string, PhaseTimes> by_type_;
  std::int64_t steps_ = 0;
};

}  // namespace cleave::server
