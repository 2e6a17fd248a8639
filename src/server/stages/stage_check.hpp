// StageCheck: what devices returned in a step of stages, made again by the server, bit for bit: to settle who is wrong
// where digests differ, for audits, and to find who brought about what no honest device can compute with.
//
// A visit is a sequence's way through a stage, forward or back; its answers are its chunks. Everything is made again
// from the boundaries that the server keeps (StageNumbers), with the worker that devices have (pieces::StageWorker).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "cleave/base/siphash.hpp"
#include "cleave/pieces/stage_worker.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

class StageCheck {
 public:
  /// Both must outlive it.
  StageCheck(Workspace& work, StageNumbers& numbers) : work_(work), numbers_(numbers) {}

  /// A step begins.
  void begin();
  /// An answer stands in its place.
  void placed(const sched::Tasklet& tasklet);

  /// The key that a witness's digest is made with: drawn when it is first asked for.
  [[nodiscard]] const SipKey& key_of(TaskletId witness);

  /// Who was wrong.
  struct Wrong {
    std::set<DeviceId> firsts;      ///< whose answers differ from the server's
    bool witness = false;           ///< whose digest does
    bool made_again = false;        ///< the server computed
    std::vector<DeviceId> answers;  ///< of all whose answers were compared, each as often as it sent one
  };
  /// Compares what a witness answered, which may be nothing of use, with what was delivered; where it differs, and for
  /// the server in a witness's place, the answers are made again.
  [[nodiscard]] Wrong compare(const sched::Tasklet& witness, const std::optional<SipTag>& answer);
  /// The visit that a tasklet completes, or the sums that it brought, are made again; nobody where it completes none.
  [[nodiscard]] Wrong audit(const sched::Tasklet& tasklet);
  /// Whether a tasklet completes a visit or brings sums, so that audit() looks at something.
  [[nodiscard]] bool completes(const sched::Tasklet& tasklet) const;

  /// Whether the server, too, fails to compute what a device refused because of values that are not finite.
  [[nodiscard]] bool cannot_be_computed(const sched::Tasklet& tasklet);
  /// Everybody whose answers in this step so far differ from the server's. Takes the server as long as all devices took
  /// together.
  [[nodiscard]] std::set<DeviceId> trace();

 private:
  using VisitId = std::tuple<std::int32_t, bool, std::int64_t>;  // stage, the way back, sequence
  struct Part {
    std::int64_t rows = 0;
    bool returns_rows = false, returns_norms = false;
    DeviceId device{};
  };
  using Bytes = std::vector<std::byte>;
  using Parts = std::map<std::int64_t, Part>;  // by first row
  struct Sums {
    DeviceId device{};
    std::int32_t stage = 0;
    bool partial = false;
    std::vector<plan::PieceSlice> slices;  // that came
    std::set<std::int64_t> sequences;
  };

  // In order of answers.
  [[nodiscard]] static std::vector<std::int64_t> order_of(const Parts& parts, bool back);
  [[nodiscard]] Bytes stored(const VisitId& visit, std::int64_t row, const Part& part);
  // Each answer of a visit again, in order; none where values are not finite.
  [[nodiscard]] std::optional<std::vector<Bytes>> make_again(const VisitId& visit, const Parts& parts);
  [[nodiscard]] std::optional<Bytes> sum_again(const Sums& sums, const std::vector<plan::PieceSlice>& slices);
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
  std::int32_t held_ = -1;  // stage
};

}  // namespace cleave::server
