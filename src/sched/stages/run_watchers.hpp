// Watchers: second devices that make an owner's sums again (docs/security.md, "A second device").
//
// A watcher is an owner that also sums slices of other owners, over the same sequences. When the sums of such an owner
// are at the server, the watcher returns a digest of its own. Owners of the same gradient read all operands anyway, so
// they are asked first; therefore all owners of a gradient are drawn together. Drawn sums that nobody watches are made
// again by the server.
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
  /// Draws owners of the open round, and finds watchers for them.
  void watch();
  /// No watcher, nor the server, still has sums to compare.
  [[nodiscard]] bool empty() const { return sums_ == 0; }

  /// The sums of an owner are at the server: the server sums what nobody watches of them.
  void compare(std::int32_t first);
  /// Of an owner that is lost, these sums are at the server: the server sums them too. Its stand-ins make only the
  /// others, and are compared where they are drawn.
  void compare_arrived(std::int32_t first, const std::vector<plan::PieceSlice>& slices);
  /// An owner of a stage is done or gone: asks the stage's watchers that have summed everything.
  void ask(std::int32_t s);
  /// A watcher has summed everything: asks it for digests of what is at the server.
  void ask_for_digests(std::int32_t index);
  void digest_in(const Purpose& purpose);
  /// A message was lost, or the device refused: it watches no more. (If the device is gone, StageRecovery calls
  /// stop().)
  void digest_lost(const Purpose& purpose);
  /// An owner watches no more: the server sums in its place what nobody else watches.
  void stop(std::int32_t index);

 private:
  /// A gradient that is drawn, and what nobody watches of it yet.
  struct Unwatched {
    std::int32_t stage = 0;
    std::vector<std::int32_t> firsts;    // its owners
    std::vector<plan::PieceSlice> rest;  // not watched yet
    std::set<std::int32_t> full{};       // devices that turned out to have no room
  };
  /// A device that could watch some of it: `widened` is the owner on it that would, or kNobody for a new role.
  struct Watcher {
    std::int32_t device = kNobody, widened = kNobody;
    bool replica = false;
    double late = 0;  // time until it would be done, as a share of what is left of the step
    std::vector<plan::PieceSlice> slices{};
  };
  std::vector<Unwatched> drawn_sums();
  // Finds watchers for what nobody can watch in time: the server, or devices that will be late.
  void watch_rest(std::vector<Unwatched>& sums);
  // `within`: the time that it may take, as a share of what is left of the step.
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
  void ask_server(std::int32_t first, const std::vector<plan::PieceSlice>& slices);
  bool comparable(const OwnerState& watcher, const OwnerState& first);
  void ask_for_digest(std::int32_t watcher, std::int32_t first, std::vector<plan::PieceSlice> slices);
  void watched_all(std::int32_t index);

  StageRun& run_;
  std::int64_t sums_ = 0;  // watchers that are not done, and ranges that the server still has to compare
  Flops server_left_;      // FLOP that the server may still spend on sums in this step
};

}  // namespace cleave::sched::stages
