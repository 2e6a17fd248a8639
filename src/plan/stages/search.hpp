// Search: tries candidates for a few horizons, then varies the settings of the best of them, and levels the owners of
// the best ones. For a caller that rehearses candidates it also makes some that are cut by processors, into stages of
// equal time, or for fewer devices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// See the file comment. Use: run(), then level(), or for all candidates the functions between them.
class Search {
 public:
  struct Candidate {
    Layout layout;
    double time;  ///< forecast
  };

  /// `chunk`: tokens; 0: kChunkTokens. `keep`: keep every candidate for candidates(). `check_memory`: the best
  /// candidate must be within_memory(), with slices of whole units. Requires: the problem outlives it.
  Search(const Problem& problem, std::int64_t chunk, bool keep, bool check_memory = false);

  /// Finds the layout with the least forecast: best(), time().
  void run();
  [[nodiscard]] const std::optional<Layout>& best() const { return best_; }
  [[nodiscard]] double time() const { return time_; }
  /// True where the usual settings give a layout: memory is not short.
  [[nodiscard]] bool is_usual() const { return usual_; }
  /// Levels the owners (level_owners.hpp) of the layouts with the least forecasts, and of some with settings near those
  /// of the best of them. best() becomes the layout whose owners are done first.
  void level();

  // Further candidates, for a caller that rehearses them. Requires: run() found a layout.

  /// Stages that are cut by what processors can do as well. Where processors are scarce, stages of equal memory do not
  /// take equal times.
  void balance_processors();
  /// For fast links, where weights, sums and the server's interface take most of the time: fewer devices hold stages,
  /// stages are smaller, and replicas may sum everything that they run.
  void use_fewer_devices();
  /// Stages of equal time. `keeping`: replicas keep sequences.
  void even_times(bool keeping);
  /// Some device has room for a piece and for kept sequences of it.
  [[nodiscard]] bool may_keep() const;
  /// The candidates so far with owners that are due when the chain ends. Their horizon may be longer, so that weights
  /// have more time to come.
  void hasten_owners();
  /// The candidates so far with levelled owners, where those are done earlier; their forecasts are shortened in the
  /// same ratio. Not where stages have several owner groups: sums take little there, and reading is uneven.
  void level_all();
  /// All candidates that were kept, each once, in order of their forecasts.
  [[nodiscard]] std::vector<Candidate> candidates() &&;

 private:
  void try_settings(Settings settings, double worth = 1);
  void consider(std::optional<Layout> layout, double worth);
  void vary_stages();
  void try_groups();
  void keep(Settings settings);
  [[nodiscard]] bool groups_may_pay() const;
  // Tries the best settings so far with a change; it must be worth `worth_`.
  template <class Change>
  void vary(Change change);
  // Tries them with a change that concerns owners alone; the forecast must be at most `worth` times the best one.
  template <class Change>
  void vary_owners(Change change, double worth);

  const Problem& problem_;
  bool keep_, check_memory_;
  std::int64_t chunk_ = kChunkTokens;
  double guess_ = 0;  // seconds that all boundaries take on the fleet's uplinks
  double layer_ = 0;  // bytes of the weights of a layer
  std::optional<Layout> best_;
  double time_ = 0;
  std::vector<Candidate> pool_;        // all candidates, with forecasts without processors
  std::vector<Candidate> candidates_;  // with `keep_`: with processors
  bool usual_ = false;                 // is_usual()
  double worth_;                       // kWorth; 1 where the usual settings give no layout
};

/// A search that has run. Rarely its best layout is too large for a device by a unit; only then it runs again with
/// `check_memory`.
[[nodiscard]] Search searched(const Problem& problem, std::int64_t chunk, bool keep);

}  // namespace cleave::plan::stages
