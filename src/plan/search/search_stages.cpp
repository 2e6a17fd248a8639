// Names of the search's stages, as bench/search_stages prints them.
#include "cleave/plan/search_stages.hpp"

#include <array>

namespace cleave::plan {

std::string_view name_of(SearchStage stage) {
  static constexpr std::array<std::string_view, kSearchStages> kNames = {
      "balance",      "refine", "group_sizes", "dealt_groups",    "depth_groups",   "group_exchange",
      "group_search", "flat",   "slabs_alone", "even_directions", "smaller_groups", "more_devices",
      "whole_depths", "rounds", "early_tiles", "later_tiles",     "early_uplinks",  "guillotine_tree",
      "again"};
  return kNames.at(static_cast<std::size_t>(stage));
}

}  // namespace cleave::plan
