// GroupSearch: which devices cover which slabs, so that the depths that groups cover by true cuts add up.
#pragma once

#include <array>
#include <optional>
#include <unordered_map>

#include "search/areas.hpp"
#include "search/slabs.hpp"
#include "search/threshold_accept.hpp"

namespace cleave::plan {

/// What is searched for: groups that cover regions of a box, along one of its sides, one after another.
struct SearchedRegions {
  const Work& work;
  GemmBox box;
  bool by_rows = true;  ///< regions are runs of rows
  double share = 1;     ///< of that side that they take together
  fleet::ServerProfile server;
  double pause = 0;  ///< as BoxBound has it
};

/// Groups that exchange devices while all together cover deeper slabs.
class GroupSearch {
 public:
  /// `sizes` are the regions' shares of what they take together. The last group of each holds the last block. `finish`
  /// is about when they are done. `draws`: the random changes to try.
  GroupSearch(const SearchedRegions& searched, const PreferredShapes& preferred,
              std::vector<std::vector<Group>> regions, const std::vector<double>& sizes, double finish,
              Draws draws = Draws(3));

  /// Where to begin, what is early enough, how much worse a change may be at first, as a share of all, and how many
  /// changes are tried, or devices cut in groups, whichever is first.
  struct Limits {
    double finish = 0, wanted = 0, worse = 0, changes = 0;
  };
  /// Tries changes for ever earlier finishes. Returns the earliest that could be met; kNever when none.
  double improve(const Limits& limits);

  /// As they were by that finish.
  [[nodiscard]] const std::vector<std::vector<Group>>& regions() const { return found_.regions; }
  /// Rows or columns of these regions.
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const { return found_.lengths; }
  /// What was missing for the next earlier finish in the end, as a share of all.
  [[nodiscard]] double lacks() const { return -total(); }

 private:
  struct Depth {
    std::int64_t blocks = 0;  // that a group covers
    double more = 0;          // how nearly it covers one more
    double strips = 0;        // rows and columns that it is sent, about
  };
  struct Members {
    std::size_t region = 0;
    bool shorter = false;
    std::vector<DeviceRates> devices;
    std::uint64_t key = 0;
    Depth depth;
  };
  struct Part {
    GemmBox box;
    double share = 0;  // of all regions
    double depth = 0;  // of its groups, with a share of what they cover more
    std::int64_t blocks = 0;
    ServerBytes bytes;  // of all that its groups cover
  };

  // What the search came to: the groups of each region, its rows or columns, and the bytes of their cuts, which are
  // counted where the server's interface has a rate.
  struct Found {
    std::vector<std::vector<Group>> regions;
    std::vector<std::int64_t> lengths;
    ServerBytes bytes;
  };

  void lay_out(const std::vector<double>& shares);
  void begin_at(double finish);
  [[nodiscard]] Found record() const;
  [[nodiscard]] std::vector<Group> groups_of(std::size_t region) const;
  void measure_all();
  [[nodiscard]] std::int64_t deepest_by_area(const Members& group) const;
  [[nodiscard]] Depth measure(const Members& group, std::int64_t deepest);
  [[nodiscard]] const Depth& depth_of(const Members& group, std::int64_t deepest);
  void count(Part& part, const Depth& depth, double sign) const;
  [[nodiscard]] double worth(const Part& part) const;
  [[nodiscard]] ServerBytes needed(const Part& part) const;
  [[nodiscard]] double fee(double interface_s) const;
  [[nodiscard]] double fee_of(const ServerBytes& estimate) const {
    return fee(underestimate_ * estimate.time(searched_.server));
  }
  [[nodiscard]] double total() const;
  [[nodiscard]] bool met() const;

  // As threshold_accept() asks.
  template <class State>
  friend void threshold_accept(State& state, Draws& draws, const Schedule& schedule);
  double advance();
  bool propose(Draws& draws);
  double loss(double worse);
  void keep();
  void undo();
  void exchange(bool forth);
  [[nodiscard]] double gain_at(const std::array<Depth, 2>& depths);

  SearchedRegions searched_;
  const PreferredShapes& preferred_;
  std::int64_t blocks_, missing_;
  std::vector<Members> groups_;
  Found found_;
  std::vector<std::int32_t> by_depth_;  // devices, those that prefer like depths beside each other
  std::vector<std::size_t> group_of_;   // by device
  std::vector<Part> parts_;
  ServerBytes bytes_;         // that are needed, by estimate
  double underestimate_ = 1;  // by what these are multiplied, since bytes of cuts were more
  double finish_ = 0, areas_at_ = 0, cut_devices_ = 0;
  std::vector<DeviceRates> devices_;
  std::optional<Areas> areas_;
  std::vector<std::uint64_t> keys_;
  std::unordered_map<std::uint64_t, Depth> known_;
  Draws draws_;
  Limits limits_;
  double met_at_ = 0;  // the earliest finish that could be met
  std::int64_t tried_ = 0;
  // The change that is tried: a device moves from one group to another, or two change places.
  struct Change {
    bool moves = false;
    std::size_t one = 0, other = 0;                   // groups
    std::size_t first_device = 0, second_device = 0;  // by DeviceRates::index
    std::size_t given = 0, taken = 0;                 // their positions in the groups
    std::array<Depth, 2> depths;
    Part first, second;  // the regions of the groups, with the change
    ServerBytes bytes;
  } change_;
};

}  // namespace cleave::plan
