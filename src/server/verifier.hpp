// Verifier: which returned blocks are looked at, how, and what came of it (docs/security.md).
//
// Products are checked against their operands, which are looked at while they are gathered; attention against its
// operands in tensors; audits compute the block again; of a block that a second device computes too, the digests are
// compared, and where they differ the server's own decides. It never changes a tensor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "block_computer.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/base/random.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/profile.hpp"
#include "cleave/server/verification.hpp"
#include "workspace.hpp"

namespace cleave::server {

/// How a returned block was found.
enum class Verdict : std::uint8_t { good, wrong };

/// Who was wrong of two devices whose answers differ; nobody where they do not.
struct PairVerdict {
  DeviceId wrong{}, also{};  ///< `also`: the other one too
};

/// Rows, or columns, of an operand or a result that are looked at together.
[[nodiscard]] std::int64_t checked_band(std::int64_t cols);

class Verifier {
 public:
  /// Charges the time until its end to verification: processor time to the report, real time to the profile.
  class Charge {
   public:
    explicit Charge(Verifier& verifier);
    ~Charge();
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

   private:
    Profile::Scope scope_;
    Seconds& total_;
    Seconds begun_;
  };

  /// `work` and `computer` must outlive it.
  Verifier(Workspace& work, BlockComputer& computer, const Verification& terms);

  /// Forgets checks of an earlier step that were begun and never ended, and what was not checked in it. `every_block`:
  /// whatever is drawn, each block of this one is computed again.
  void begin_step(bool every_block = false);
  /// Forgets those of an operation.
  void retire(OpId op);

  /// Whether any block may be looked at.
  [[nodiscard]] bool looks_at_blocks() const {
    return terms_.mode != VerifyMode::off && terms_.mode != VerifyMode::quorum;
  }
  /// Whether anything is verified.
  [[nodiscard]] bool looks() const { return terms_.mode != VerifyMode::off; }
  /// Whether this tasklet's block is.
  [[nodiscard]] bool is_drawn(const sched::Tasklet& tasklet) const;

  /// The check that a GEMM tasklet's operands are to be shown to as they are gathered, in order; null where none is.
  /// `begins`: with the first of them. Valid until the block is judged or its operation retires.
  [[nodiscard]] kernels::ProductCheck* check_of(const sched::Tasklet& tasklet, bool begins);

  /// The verdict on a returned block whose header is as the task asked. Requires: its operands are unchanged.
  [[nodiscard]] Verdict check(const sched::Tasklet& tasklet, const comm::ResultView& result);

  /// Notes a wrong block; the verdict on it. `checked`: against its operands, with this ratio of error to bound.
  Verdict record(Finding finding);
  Verdict accuse(const sched::Tasklet& tasklet, bool checked, double ratio);

  /// Some blocks are looked at and others are not.
  [[nodiscard]] bool samples() const {
    return terms_.mode == VerifyMode::sample || terms_.mode == VerifyMode::audit || pairs();
  }
  [[nodiscard]] bool pairs() const { return terms_.mode == VerifyMode::quorum; }
  /// In this step each block is computed again: begin_step().
  [[nodiscard]] bool looks_at_every_block() const { return every_block_; }
  /// A block stands in its place, looked at or not.
  void placed(const sched::Tasklet& tasklet) {
    if (samples() && (leaves_to_witnesses() || !is_drawn(tasklet))) ++unchecked_[tasklet.piece.device];
  }
  /// The same of an answer in a step of stages, whatever is looked at later.
  void placed_unseen(DeviceId device) { ++unchecked_[device]; }
  [[nodiscard]] bool audits() const { return terms_.mode == VerifyMode::audit; }
  /// A pair of a step in stages was compared; `settled`: by making it again; `cleared`: nobody's answers were wrong.
  void compared(bool settled, bool cleared) {
    ++report_.checked;
    if (settled) ++report_.suspected;
    if (settled && cleared) ++report_.cleared;
  }
  /// The server made these answers again, one of each device in the list; some were wrong.
  void looked_at(const std::vector<DeviceId>& answers, const std::set<DeviceId>& wrong);
  /// Notes a device that answered wrongly in a step of stages; `digest`: as a witness.
  Verdict accuse_in_stages(DeviceId device, TaskletId tasklet, std::string what, bool digest = false);
  /// Keeps the digest of a block that a witness is to compute too, under a key of its own.
  void keep_digest(const sched::Tasklet& tasklet, const comm::ResultView& result);
  /// The key of the pair that a witness belongs to. Requires: keep_digest() of it, in this step.
  [[nodiscard]] const SipKey& key_of(const sched::Tasklet& witness) const { return pair_of(witness).key; }
  /// Compares what a witness answered, which may be nothing of use; where it differs, and for the server in a witness's
  /// place, the block is computed. Requires: as key_of(); operands are unchanged.
  [[nodiscard]] PairVerdict compare(const sched::Tasklet& witness, const std::optional<SipTag>& answer);

  /// Who delivered blocks of this step that the server has not looked at itself.
  [[nodiscard]] std::vector<DeviceId> unverified() const {
    std::vector<DeviceId> devices;
    for (const auto& [device, blocks] : unchecked_) devices.push_back(device);
    return devices;
  }
  /// Blocks of this step that nobody looked at, of devices that were found out since.
  [[nodiscard]] const std::vector<Unchecked>& spoiled() const { return spoiled_; }

  /// Counts a block that came, and the time that its device says it took.
  void count(Seconds device_time) {
    ++report_.blocks;
    report_.device_time += device_time;
  }
  [[nodiscard]] const VerificationReport& report() const { return report_; }

 private:
  // The secret random numbers that a tasklet's block is checked with.
  [[nodiscard]] Random signs_of(const sched::Tasklet& tasklet) const;
  /// A block whose witness has not answered yet.
  struct OpenPair {
    sched::Tasklet tasklet;
    SipKey key;
    SipTag digest;
  };
  [[nodiscard]] const OpenPair& pair_of(const sched::Tasklet& witness) const;
  // Blocks that are looked at are computed again, not checked against their operands first.
  [[nodiscard]] bool recomputes() const { return every_block_ || audits(); }
  // A block that is drawn is for a witness to compute.
  [[nodiscard]] bool leaves_to_witnesses() const { return pairs() && !every_block_; }
  [[nodiscard]] double error_ratio_of_product(const sched::Tasklet& tasklet, const comm::ResultView& result);
  [[nodiscard]] double attention_error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result);

  Workspace& work_;
  BlockComputer& computer_;
  Verification terms_;
  Random draws_;
  VerificationReport report_;
  bool every_block_ = false;
  std::map<DeviceId, std::int64_t> unchecked_;  // blocks of this step
  std::vector<Unchecked> spoiled_;
  std::map<TaskletId, OpenPair> open_pairs_;
  KeptMap<OpId, KeptMap<std::int64_t, kernels::ProductCheck>> checks_;  // of tasklets, by id
};

}  // namespace cleave::server
