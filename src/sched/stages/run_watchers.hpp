// Watchers: sums made again by owners that watch others (docs/security.md, "A second device").
//
// Who watches reads the same operands and sums the same units over the same sequences; when an owner's sums are at the
// server, it returns a digest of them. Owners of the same gradient read everything anyway, so they are asked first, and
// the owners of a gradient are drawn together. What nobody watches of sums that were drawn, the server sums itself.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "stages/run_state.hpp"

namespace cleave::sched::stages {

struct StageRun;

class Watchers {
 public:
  explicit Watchers(StageRun& run) : run_(run) {}

  void begin();
  /// Owners of the open round that are drawn get others that watch them.
  void watch();
  /// No owner watches others that is not done.
  [[nodiscard]] bool empty() const { return sums_ == 0; }

  /// The sums of an owner are at the server.
  void compare(std::int32_t first);
  /// An owner is done, or gone: who watches its stage may have waited for it.
  void ask(std::int32_t s);
  /// Who watches is asked for digests of what is at the server, when it has summed all.
  void ask_for_digests(std::int32_t index);
  void digest_in(const Purpose& purpose);
  /// A message was lost, or the device refused; of one that is gone recovery stops the watch.
  void digest_lost(const Purpose& purpose);
  /// It cannot go on: others do, or the server.
  void stop(std::int32_t index);

 private:
  /// Of a gradient that is drawn, what nobody watches yet.
  struct Unwatched {
    std::int32_t stage = 0;
    std::vector<std::int32_t> firsts;  // that sum it
    std::vector<plan::PieceSlice> rest;
    std::set<std::int32_t> full{};  // devices that have less room than it seemed
  };
  /// A device that could: as an owner that is widened, or in a new role.
  struct Watcher {
    std::int32_t device = kNobody, widened = kNobody;
    bool replica = false;
    double late = 0;  // when it has read and summed, of the time that it may take
    std::vector<plan::PieceSlice> slices{};
  };
  std::vector<Unwatched> drawn_sums();
  // What nobody can watch in time.
  void watch_rest(std::vector<Unwatched>& sums);
  // `within`: a share of the time that the step has left.
  std::optional<Watcher> best_watcher(const Unwatched& of, double within);
  Bytes memory_for(std::int32_t s, const Watcher& watcher);
  void take(Unwatched& of, const Watcher& watcher);
  void begin_watching(const Unwatched& of, const Watcher& watcher);
  Flops flops_of(const Unwatched& of);
  double sequences_of(const OwnerState& of) const;
  double elements_of(const Unwatched& of, std::span<const plan::PieceSlice> slices);
  std::vector<plan::PieceSlice> first_of(const Unwatched& of, const std::vector<plan::PieceSlice>& slices,
                                         double elements);
  std::int32_t owner_like(std::int32_t id, const OwnerState& like);
  plan::OwnerCost cost_with(const OwnerState& of, const std::vector<plan::PieceSlice>& slices);
  void add_watched(std::int32_t index, const std::vector<plan::PieceSlice>& slices);
  bool comparable(const OwnerState& watcher, const OwnerState& first);
  void ask_for_digest(std::int32_t watcher, std::int32_t first, std::vector<plan::PieceSlice> slices);
  void watched_all(std::int32_t index);

  StageRun& run_;
  std::int64_t sums_ = 0;  // owners that watch others and are not done, and ranges that the server is to compare
  Flops server_left_;      // that it may do for sums in this step
};

}  // namespace cleave::sched::stages
