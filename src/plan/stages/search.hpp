// Search: candidates for a few horizons, then for other shares of memory and groups beside the best of them, and their
// owners levelled. Whoever can tell better than a forecast which is quickest also gets some that are cut by processors,
// by equal times, or for fewer devices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

class Search {
 public:
  struct Candidate {
    Layout layout;
    double time;  ///< its forecast
  };

  /// With `keep` every candidate is kept; with `check_memory` none is taken that is too large by the
  /// units that slices are made of. Requires: the problem outlives it.
  Search(const Problem& problem, std::int64_t chunk, bool keep, bool check_memory = false);

  /// Finds the layout with the least forecast.
  void run();
  [[nodiscard]] const std::optional<Layout>& best() const { return best_; }
  [[nodiscard]] double time() const { return time_; }
  /// Memory is not short: the usual settings give a layout.
  [[nodiscard]] bool is_usual() const { return usual_; }
  /// Of the layouts with the least forecasts, and of some like the best of those, the one whose owners are done first,
  /// each with owners that are found for that.
  void level();

  // Further candidates, for whoever rehearses them. Requires: run() found a layout.

  /// Cut by what processors can do as well: where those are scarce, stages of equal memory are not of equal time.
  void balance_processors();
  /// For fast links, where weights on their way down, sums and the server's interface take the time: fewer devices hold
  /// stages, which are smaller, and may sum everything that they run.
  void use_fewer_devices();
  /// Of stages that take equal times; with `keeping`, replicas keep sequences.
  void even_times(bool keeping);
  /// Some device has room for a piece and for the sequences that it keeps.
  [[nodiscard]] bool may_keep() const;
  /// Each with owners that are due when the chain ends: a horizon is longer than that where weights are to have more
  /// time to come.
  void hasten_owners();
  /// Each with levelled owners, where those are done earlier: by its forecast, as much sooner. Where stages have
  /// groups, sums take little and reading is uneven.
  void level_all();
  /// Everything that was kept, each once, by forecast.
  [[nodiscard]] std::vector<Candidate> candidates() &&;

 private:
  void try_settings(Settings settings, double worth = 1);
  void consider(std::optional<Layout> layout, double worth);
  void vary_stages();
  void try_groups();
  void keep(Settings settings);
  [[nodiscard]] bool groups_may_pay() const;
  // The best settings so far, with a change that must be worth so much.
  template <class Change>
  void vary(Change change);
  // With one that concerns owners alone.
  template <class Change>
  void vary_owners(Change change, double worth);

  const Problem& problem_;
  bool keep_, check_memory_;
  std::int64_t chunk_ = kChunkTokens;
  double guess_ = 0;  // seconds that all boundaries take on the fleet's uplinks
  double layer_ = 0;  // bytes of the weights of a layer
  std::optional<Layout> best_;
  double time_ = 0;
  std::vector<Candidate> pool_;        // by forecast() without processors
  std::vector<Candidate> candidates_;  // with them
  bool usual_ = false;                 // the usual settings give a layout
  double worth_;                       // what a departure from them must bring
};

/// A search that has run. That its best layout is too large for a device by a unit is rare, so it is looked at last.
[[nodiscard]] Search searched(const Problem& problem, std::int64_t chunk, bool keep);

}  // namespace cleave::plan::stages
