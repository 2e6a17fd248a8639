// QuorumFleet: a fleet in which a share of the tasklets is also given to a second device, the witness, which returns a
// digest of the answer that it would have sent (docs/security.md).
//
// It stands between a scheduler and the fleet that carries out its tasklets, and decides only about pairs of devices:
// which tasklets have a witness, which device that is, and what must wait for it. A witness is asked when the answer is
// in, so that no device can learn from a witness, before it answers, that its answer will be compared. The fleet behind
// compares the two; if they differ, `rejected` names the device that was wrong. Where no second device may be asked, or
// the witness does not answer, the server computes the block in its place.
//
// Operands of a pair must not change before it is closed: what would overwrite them waits, memory that an operation
// gives up is kept, and kernels on which nothing follows (updates, the loss) begin when no pair is open. So the step
// ends with every pair closed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/step_spec.hpp"

namespace cleave::sched {

/// How pairs are drawn, and how long witnesses are waited for.
struct QuorumOptions {
  double fraction = 0.1;    ///< share of the tasklets that have a witness
  SipKey secret{};          ///< key of the draws, which devices must not foresee
  plan::PlanOptions plan;   ///< how a witness's panels are chosen
  DType wire = DType::f32;  ///< of operands
  bool timed = true;        ///< the fleet's times are modelled ones: a witness that is late by them is replaced
  /// Host of each device, by its index: devices of one host are never paired. Empty: they are not told apart by host.
  std::vector<std::string> hosts{};
};

/// The options of a forecast: without hosts, and with a key made from the fleet's seed in place of a secret.
[[nodiscard]] QuorumOptions quorum_options(const StepSpec& spec);

/// What pairs cost since the fleet was made.
struct QuorumTotals {
  std::int64_t witnesses = 0;  ///< tasklets that were sent to witnesses
  std::int64_t by_server = 0;  ///< pairs in which the server computed in the place of a witness
  Bytes down, up;              ///< bytes to and from witnesses
};

/// now - before, member by member.
[[nodiscard]] QuorumTotals difference(const QuorumTotals& now, const QuorumTotals& before);
/// Adds the totals to the report of a step.
void add(StepReport& report, const QuorumTotals& totals);

class QuorumFleet final : public ForwardingFleet<> {
 public:
  /// `behind` must outlive it.
  QuorumFleet(Fleet& behind, QuorumOptions options);
  ~QuorumFleet() override;

  void begin_step(const model::StepGraph& graph) override;
  void submit(const Tasklet& tasklet) override;
  void start(const model::Operation& kernel) override;
  void retire(OpId op) override;
  void forget(TaskletId tasklet) override;
  void release(TaskletId columns, DeviceId device) override;
  Event next_event(Seconds deadline) override;

  [[nodiscard]] const QuorumTotals& totals() const { return totals_; }
  /// Excludes a device that was found out elsewhere from being a witness.
  void distrust(DeviceId device);

 private:
  /// An answer that waits for its witness.
  struct Pair {
    Tasklet tasklet;           // the first device's, under its own id
    DeviceId witness{};        // kServerDevice: the server stands in
    std::int64_t attempt = 0;  // of second devices, and at last of the server
    Seconds asked{}, takes{};  // when; how long it takes, alone
    Seconds wanted{};          // since when somebody waits to overwrite its operands
  };
  using Work = std::variant<Tasklet, const model::Operation*>;
  struct Draw;  // of witnesses (src/sched/quorum/witness_draw.hpp)

  void open(const Tasklet& tasklet);
  void ask(Pair& pair, std::int64_t attempt);
  void ask_another(Pair& pair);
  void close(std::int64_t tasklet);
  void replace_witness(DeviceId device);
  void replace_late();
  [[nodiscard]] Seconds late_at(const Pair& pair) const;
  [[nodiscard]] std::optional<Event> take(Event event);
  [[nodiscard]] std::optional<Event> take_witness(std::int64_t tasklet, std::int64_t attempt, Event event);
  [[nodiscard]] bool must_wait(OpId op) const;
  void want_readers(OpId op);
  void release_held();

  Fleet& behind_;
  QuorumOptions options_;
  QuorumTotals totals_;
  const model::StepGraph* graph_ = nullptr;
  std::vector<std::vector<OpId>> readers_;  // by operation: those on devices whose operands it overwrites
  std::vector<bool> overwritten_;           // by operation on devices: its operands are, before the updates
  std::vector<bool> last_;                  // by operation: nothing follows it
  std::unordered_map<std::int64_t, Tasklet> drawn_;
  std::map<std::int64_t, Pair> pairs_;  // open, by tasklet
  std::vector<std::int64_t> open_;      // of them, by operation
  std::vector<bool> retired_;           // operations that will be, when their last pair closes
  std::deque<Work> held_;
  Seconds busy_at_;  // when something else than a witness was last done
  std::deque<Event> pending_;
  std::unordered_map<std::int64_t, std::pair<DeviceId, Bytes>> columns_;  // by the tasklet that brings them
  std::unique_ptr<Draw> draw_;
};

}  // namespace cleave::sched
