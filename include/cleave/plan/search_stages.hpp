// The stages of the search for tiles, which Partition::automatic goes through. All of them run, except where one is
// left out to measure what it is worth: build/release/bench/search_stages, docs/measurements/search_stages.md.
#pragma once

#include <cstdint>
#include <string_view>

namespace cleave::plan {

enum class SearchStage : std::uint8_t {
  balance,          ///< groups of a region exchange devices and blocks by areas, one move at a time
  refine,           ///< the same by true cuts
  group_sizes,      ///< groups of several sizes, not of one
  dealt_groups,     ///< groups of like capacity
  depth_groups,     ///< up to 16 devices: groups of like depth
  group_exchange,   ///< threshold accepting by areas
  group_search,     ///< alone: threshold accepting by true cuts
  flat,             ///< the whole depth for all devices
  slabs_alone,      ///< alone: no region at the whole depth for few devices
  even_directions,  ///< narrow interface: deeper or shallower blocks, until both directions take as long
  smaller_groups,   ///< narrow interface: groups of 14 and of 9 devices
  more_devices,     ///< narrow interface: more devices than fill it
  whole_depths,     ///< narrow interface: a share of the work at the whole depth
  rounds,           ///< little memory: parts of the box one after another
  early_tiles,      ///< alone: tiles whose results leave early
  later_tiles,      ///< alone: tiles whose results need not, where the others are far from the bound
  early_uplinks,    ///< alone, narrow interface: uplinks that are taken for less of the time
  guillotine_tree,  ///< alone, up to 16 devices
  again,            ///< alone: a second, longer search for plans that are far from their sharper bound
  count_            ///< how many there are
};
inline constexpr int kSearchStages = static_cast<int>(SearchStage::count_);

/// The search stages that run; at first, all of them.
class SearchStageSet {
 public:
  [[nodiscard]] constexpr bool runs(SearchStage stage) const { return (left_out_ & bit(stage)) == 0; }
  [[nodiscard]] constexpr SearchStageSet without(SearchStage stage) const {
    SearchStageSet set = *this;
    set.left_out_ |= bit(stage);
    return set;
  }

 private:
  static constexpr std::uint32_t bit(SearchStage stage) { return 1U << static_cast<std::uint32_t>(stage); }
  std::uint32_t left_out_ = 0;
};

/// The enumerator's name.
[[nodiscard]] std::string_view name_of(SearchStage stage);

}  // namespace cleave::plan
