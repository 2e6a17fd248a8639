// Parts of plan_stages(): what a candidate layout is made from, and its steps. Figures are bytes, seconds and FLOP.
//
// A candidate is laid out for a horizon, the time that the chain of sequences is expected to take: how long weights may
// take to come, and owners' links may be busy, are shares of it (Settings). cuts.cpp cuts the pieces into stages by the
// memory of the devices, deal.cpp gives every stage its replicas by uplink, even_cuts.cpp does both by time, owners.cpp
// finds owners of gradients and their shares; lay_out.cpp puts them together. search.cpp tries settings,
// level_owners.cpp finds owners again for the layouts that it likes best, and slices.cpp makes slices of their shares.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_cost.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

class RunBook;

/// What is searched.
struct Settings {
  double loading = 14;     ///< seconds that a bottom stage's weights may take to come
  double deeper = 8;       ///< seconds more at the top, where they are needed later
  double owning = 95;      ///< seconds in which owners are to have summed
  double due = 0;          ///< seconds before which no owner is done with its sums, whatever `owning`
  double lag = 0.15;       ///< share of `owning` after which the first backward sequences come
  double for_sums = 0.25;  ///< share of a device's memory that is left for sums
  /// Bytes of weights that a stage may have, however much more its devices could hold in time.
  double largest = std::numeric_limits<double>::infinity();
  double tilt = 0.2;  ///< more uplink for higher stages: their time is between filling and draining
  std::int64_t chunk = 128;
  std::int64_t owned_stages = 2;  ///< most stages of which a device may own slices
  std::int64_t groups = 1;        ///< most groups of owners of a stage
  /// Fewest, where it has so many replicas: each group reads its own sequences only, so the server sends less.
  std::int64_t fewest_groups = 1;
  std::int64_t owners = 0;  ///< most replicas in a group that own slices; 0: all
  /// Share of the devices, those with least uplink, that hold no stage and so have room for sums. Where it is not 0,
  /// stages are cut by what each needs exactly, not by what a layer needs on average.
  double only_owners = 0;
  /// Memory is counted to the last: a device without a stage reserves none for chunks at work, owners are chosen so
  /// that they fill devices, and whoever has slow links either way holds no stage. With only_owners.
  bool tight = false;
  /// Share of the devices that hold stages, those that pass sequences quickest: fewer weights leave the server.
  double holding = 1;
  bool helpers = true;           ///< devices that are no replicas of a stage may own slices of it
  std::int64_t even_stages = 0;  ///< at most so many stages, of equal time (cut_evenly()); 0: cut by memory
  bool keeping = false;          ///< replicas keep the values of the way forward, otherwise they are made again
  /// Seconds for which the processors of a stage's share of the devices may be taken.
  double computing = std::numeric_limits<double>::infinity();
};

/// A replica keeps so many sequences at least, or none: while one is on its way to the head and back, others pass.
inline constexpr std::int64_t kFewestKept = 8;

/// The usual ones for a chain of sequences that takes so many seconds.
[[nodiscard]] Settings of_horizon(double horizon);
/// A horizon that is so many times as long.
void stretch(Settings& settings, double factor);
/// What is tried where the usual settings fit nothing, one family after another until one does. `guess`: seconds that
/// all boundaries take on the fleet's uplinks.
[[nodiscard]] std::vector<std::vector<Settings>> settings_for_short_memory(double guess);
/// What is tried where boundaries' time is no guide to a horizon: for work so small that its weights, latencies and
/// kernels take longer, and for a fleet with larger memories, to say how much it lacks.
[[nodiscard]] std::vector<Settings> settings_of_any_work();

/// Everything that does not change from candidate to candidate.
struct Problem {
  const StageWork* work = nullptr;
  std::span<const fleet::DeviceProfile> devices;
  std::vector<double> memory, down, up, flops;     // of each device
  std::vector<double> piece_weights, piece_flops;  // of each piece: bytes, and of a whole step
  double nic_out = 0, nic_in = 0;                  // of the server
  OwnerPlaces owners = OwnerPlaces::automatic;
  bool preload = true;
  std::shared_ptr<RunBook> book;  // of the work
};

/// What is tried last: sequences may take less time than the largest piece's weights on a downlink, and its stage can
/// begin no sooner.
[[nodiscard]] std::vector<Settings> settings_of_slow_downlinks(const Problem& problem);

/// A stage while it is laid out.
struct StageDraft {
  explicit StageDraft(StageCost of) : cost(of) {}
  StageCost cost;
  double demand = 1;                  // of uplink, beside the others
  std::vector<std::size_t> replicas;  // indices of devices
  double uplink = 0;                  // of the replicas, as far as it is of use
};

/// A share of a stage's gradient on a device.
struct OwnerShare {
  std::size_t device = 0, stage = 0;
  std::int64_t group = 0;
  double share = 0;
  bool replica = false;
};

struct Layout {
  Settings settings;
  std::vector<StageDraft> stages;
  std::vector<OwnerShare> owners;
  std::vector<std::int64_t> groups;  // of each stage
  double gradients_s = 0;            // when the last owner has sent its sums, as planned
  double sending_s = 0;              // that the uplink with most sums to send takes for them
  double processors_s = 0;           // for which the busiest processor is taken: sequences, and sums that it owns
};

[[nodiscard]] inline double in_bytes(Bytes bytes) { return static_cast<double>(bytes.value()); }

/// Bytes of all weights as they travel.
[[nodiscard]] double weights_of(const StageWork& work);

/// Pieces at the top that are the head, or its parts; 0 of work that ends below it (rounds.cpp).
[[nodiscard]] std::int64_t head_pieces(const StageWork& work);
/// The lowest layer of it, for what all layers have in common.
[[nodiscard]] StageCost typical_layer(const StageWork& work, std::int64_t chunk);

/// FLOP of a stage's sequences in a step, forward and backward, and of the sums of their gradients; where they are
/// kept, nothing is made again.
[[nodiscard]] double stage_flops(const StageWork& work, const StageCost& stage, bool kept = false);

/// How fast a device sends what comes of a stage's sequences: no faster than its downlink and its processor let it.
class PassingRate {
 public:
  /// Requires: the problem outlives it.
  PassingRate(const Problem& problem, const StageCost& stage, bool kept);
  /// Bytes a second.
  [[nodiscard]] double of(std::size_t device) const {
    return std::min({problem_->up[device], problem_->down[device] * per_byte_, problem_->flops[device] * per_flop_});
  }

 private:
  const Problem* problem_;
  double per_byte_, per_flop_;  // that comes in; that is computed
};

/// The settings have its replicas keep sequences.
[[nodiscard]] bool is_kept(const Settings& settings, const StageCost& stage);
/// How many at least.
[[nodiscard]] std::int64_t least_kept(const StageWork& work);

/// Memory that a replica of the stage needs at least.
[[nodiscard]] double replica_bytes(const StageDraft& draft);
/// The same for a replica that keeps sequences, where the settings have it so.
[[nodiscard]] double replica_bytes(const StageWork& work, const StageDraft& draft, const Settings& settings);

/// Bytes by which whole units may make an owner's sums and weights larger than its share of them.
[[nodiscard]] double rounding_bytes(const StageWork& work, const StageDraft& draft);

/// Of each device: it may hold a stage, by Settings::only_owners.
[[nodiscard]] std::vector<bool> may_replicate(const Problem& problem, const Settings& settings);

/// Seconds that a sequence at a layer takes of the busiest resource, of each device.
[[nodiscard]] std::vector<double> passing_times(const Problem& problem, const Settings& settings);
/// Settings::even_stages at most, with their replicas; none where the pieces do not fit.
[[nodiscard]] std::vector<StageDraft> cut_evenly(const Problem& problem, const Settings& settings);
/// Stages for the settings, by what the devices hold in time.
class StageCutter {
 public:
  StageCutter(const Problem& problem, const Settings& settings);
  /// The uplinks being dealt out in so many shares, a stage each; none where the pieces do not fit.
  [[nodiscard]] std::vector<StageDraft> cut(std::int64_t shares) const;

 private:
  struct Able {
    std::size_t device;
    double room;            // for weights
    double bottom, deeper;  // bytes that come in time at the bottom, and more of them at the top
  };
  struct Share {
    double room = std::numeric_limits<double>::infinity(), flops = 0;
    double memory = std::numeric_limits<double>::infinity();  // that the least of its devices has for a stage
  };
  [[nodiscard]] std::int64_t body() const;  // pieces without the head
  [[nodiscard]] std::vector<Share> deal(std::int64_t shares) const;

  const Problem& problem_;
  const Settings& settings_;
  std::vector<Able> able_;  // devices that may hold a stage, the least able first
  double uplink_ = 0;       // of all of them
};
/// Replicas of every stage; false where a stage finds none.
[[nodiscard]] bool deal_replicas(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages);
/// Exchanges devices between stages so that the replicas of each come closer to having room for its sums.
void make_room_for_sums(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages);
/// Owners of every gradient for the horizon; false where sums do not fit.
[[nodiscard]] bool assign_owners(const Problem& problem, Layout& layout);

/// Requires: what it is made of outlives it.
[[nodiscard]] Problem problem_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                 const StageOptions& options);
/// The candidate with the least forecast that the search comes by; with `all`, then all others, and some that are cut
/// by what processors can do, or into stages of equal times, for whoever has a forecast of his own.
[[nodiscard]] std::vector<Layout> search_layouts(const Problem& problem, std::int64_t chunk, bool all);

/// The candidate of these settings, if there is one.
[[nodiscard]] std::optional<Layout> lay_out(const Problem& problem, const Settings& settings);
/// The same stages and replicas with other owners of gradients; the settings differ in what concerns those alone.
[[nodiscard]] std::optional<Layout> own_anew(const Problem& problem, const Layout& layout, const Settings& settings);
/// How long sequences take to pass all stages, as far as forecast(): gradients and the server's interface aside.
[[nodiscard]] double chain_time(const Problem& problem, const Layout& layout, bool processors);
/// When a step ends whose owners are done at `end`, for what passes the server's interface.
[[nodiscard]] double beside_interface(const Problem& problem, const Layout& layout, double end);
/// When the last sequence has passed, as late as processors have it that make sums as well.
[[nodiscard]] double last_passage(const Problem& problem, const Layout& layout);
/// When the step is forecast to end; with `processors`, no earlier than those of each stage allow.
[[nodiscard]] double forecast(const Problem& problem, const Layout& layout, bool processors);
/// Until enough replicas of a stage have its weights.
[[nodiscard]] double loading_time(const Problem& problem, const StageDraft& draft);
/// When a phase is forecast to end in which all sequences pass one way only: forward, or back with the sums.
[[nodiscard]] double forecast_one_way(const Problem& problem, const Layout& layout, bool back);

}  // namespace cleave::plan::stages
