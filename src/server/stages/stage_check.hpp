// StageCheck: the server recomputes what devices returned in a step of stages, bit for bit. This settles which device
// is wrong where digests differ, serves audits, and finds the device whose answer made values that are not finite.
//
// A visit is a sequence at a stage, forward or backward; its answers are the results of its chunks. Everything is made
// again from the boundaries that the server keeps (StageNumbers), with the worker that devices run
// (pieces::StageWorker).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "cleave/base/siphash.hpp"
#include "cleave/pieces/stage_worker.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

class StageCheck {
 public:
  /// `work` and `numbers` must outlive this object.
  StageCheck(Workspace& work, StageNumbers& numbers) : work_(work), numbers_(numbers) {}

  /// A step begins.
  void begin();
  /// The answer of a tasklet is stored in StageNumbers.
  void placed(const sched::Tasklet& tasklet);

  /// The key of a witness's digest, drawn at the first call for that witness.
  [[nodiscard]] const SipKey& key_of(TaskletId witness);

  /// Which devices were wrong.
  struct Wrong {
    std::set<DeviceId> firsts;      ///< devices whose answers differ from the server's
    bool witness = false;           ///< the digest of the witness differs from the server's
    bool made_again = false;        ///< the server has made the answers again
    std::vector<DeviceId> answers;  ///< for each answer that was first compared with the server's, who sent it
  };
  /// Compares a witness's digest with the stored answers; `answer`: none if the witness sent nothing of use. Where they
  /// differ, and where the server is the witness, makes the answers again and compares both with those.
  [[nodiscard]] Wrong compare(const sched::Tasklet& witness, const std::optional<SipTag>& answer);
  /// Makes the visit that a tasklet completes, or the sums that it brought, again and compares. Nobody is wrong where
  /// it completes nothing.
  [[nodiscard]] Wrong audit(const sched::Tasklet& tasklet);
  /// Whether `answer` has the sums that a send_sums asks for, as the server makes them.
  [[nodiscard]] bool has_sums(const sched::Tasklet& tasklet, std::span<const std::byte> answer);
  /// Whether a tasklet completes a visit or brings sums, so that audit() compares something. Answers may come in any
  /// order: the one that leaves no rows missing completes a visit. Requires: placed(tasklet).
  [[nodiscard]] bool completes(const sched::Tasklet& tasklet) const;

  /// Whether the server, too, fails to compute what a device refused because of values that are not finite.
  [[nodiscard]] bool cannot_be_computed(const sched::Tasklet& tasklet);
  /// All devices whose answers in this step so far differ from the server's. Cost: all work of the step so far, on the
  /// server.
  [[nodiscard]] std::set<DeviceId> trace();

 private:
  using VisitId = std::tuple<std::int32_t, bool, std::int64_t>;  // stage, whether backward, sequence
  struct Part {
    std::int64_t rows = 0;
    bool returns_rows = false, returns_norms = false;
    DeviceId device{};
    bool looked_at = false;  // a visit can be completed, and looked at, again: a lost device's answer comes once more
  };
  using Bytes = std::vector<std::byte>;
  using Parts = std::map<std::int64_t, Part>;  // by first row
  struct Sums {
    DeviceId device{};
    std::int32_t stage = 0;
    bool partial = false;
    std::vector<plan::PieceSlice> slices;  // those whose sums have come
    std::set<std::int64_t> sequences;      // those that it has summed
  };

  // First rows of a visit's answers, in the order in which they are made.
  [[nodiscard]] static std::vector<std::int64_t> order_of(const Parts& parts, bool back);
  [[nodiscard]] Bytes stored(const VisitId& visit, std::int64_t row, const Part& part);
  // `parts`, and those before or between them whose answers are still to come.
  [[nodiscard]] Parts without_gaps(const Parts& parts, bool back) const;
  // Makes each answer of a visit again, in order; where values are not finite, only those before.
  [[nodiscard]] std::vector<Bytes> make_again(const VisitId& visit, const Parts& parts);
  [[nodiscard]] std::optional<Bytes> sum_again(const Sums& sums, const std::vector<plan::PieceSlice>& slices);
  // What a tasklet that sends sums is to send; none where the server cannot make the sums.
  [[nodiscard]] std::optional<Bytes> own_sums(const sched::Tasklet& tasklet);
  [[nodiscard]] Wrong compare_visit(const VisitId& visit, const SipKey& key, const std::optional<SipTag>& answer,
                                    bool by_server);
  [[nodiscard]] Wrong compare_sums(std::int32_t owner, const std::vector<plan::PieceSlice>& slices, const SipKey& key,
                                   const std::optional<SipTag>& answer, bool by_server);
  pieces::StageWorker& worker_of(std::int32_t stage);

  Workspace& work_;
  StageNumbers& numbers_;
  std::map<VisitId, Parts> visits_;
  std::map<std::int32_t, Sums> sums_;  // by owner
  std::map<TaskletId, SipKey> keys_;
  std::unique_ptr<pieces::StageWorker> worker_;
  std::int32_t held_ = -1;  // the stage that worker_ holds
};

}  // namespace cleave::server
