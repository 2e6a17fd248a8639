// Parts of plan_stages(): the values that a candidate layout is made of, and the functions that make it. Figures are
// bytes, seconds and FLOP.
//
// A candidate is laid out for a horizon: the time for which sequences are expected to pass. How long weights may take
// to come, and for how long owners' links may be busy, are shares of it (Settings).
//   cuts.cpp          cuts the pieces into stages by the memory of the devices
//   deal.cpp          gives every stage its replicas, by uplink
//   even_cuts.cpp     does both, by time
//   owners.cpp        finds owners of gradients and their shares
//   lay_out.cpp       puts these together: one candidate for given settings
//   search.cpp        tries settings
//   level_owners.cpp  finds owners anew for the best candidates
//   slices.cpp        makes slices of the owners' shares
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

/// The parameters of a candidate, which the search varies.
struct Settings {
  double loading = 14;     ///< seconds within which the weights of the lowest stage must come
  double deeper = 8;       ///< seconds more for the highest stage, whose weights are needed later
  double owning = 95;      ///< seconds within which owners must have summed
  double due = 0;          ///< seconds before which no owner can be done with its sums, whatever `owning`
  double lag = 0.15;       ///< share of `owning` after which the first sequences come back
  double for_sums = 0.25;  ///< share of a device's memory that is left for sums
  /// Most bytes of weights of a stage, even if its devices could hold more in time.
  double largest = std::numeric_limits<double>::infinity();
  double tilt = 0.2;         ///< how much more uplink the highest stage gets: it works for a shorter part of the step
  std::int64_t chunk = 128;  ///< tokens
  std::int64_t owned_stages = 2;  ///< most stages of which a device may own slices
  std::int64_t groups = 1;        ///< most owner groups of a stage
  /// Fewest owner groups of a stage that has so many replicas. A group reads its own sequences only, so with more
  /// groups the server sends less.
  std::int64_t fewest_groups = 1;
  std::int64_t owners = 0;  ///< most replicas that own slices, in an owner group; 0: all
  /// Share of the devices that hold no stage, so that they have room for sums: those with least uplink. Where it is not
  /// 0, stages are cut by the memory that each of them needs, not by that of an average layer.
  double only_owners = 0;
  /// Use every byte of memory, with only_owners: a device without a stage reserves no memory for chunks at work, owners
  /// are chosen so that they fill devices, and devices hold no stage where either of their links is slow.
  bool tight = false;
  /// Share of the devices that hold stages: those that pass sequences quickest. With fewer replicas the server sends
  /// fewer weights.
  double holding = 1;
  bool helpers = true;           ///< devices that are no replicas of a stage may own slices of it
  std::int64_t even_stages = 0;  ///< at most so many stages, of equal time (cut_evenly()); 0: cut by memory
  bool keeping = false;          ///< replicas keep the values of forward passes; otherwise they recompute them
  /// Most seconds for which the processors of a stage's replicas are busy, when stages are cut.
  double computing = std::numeric_limits<double>::infinity();
};

/// A replica keeps at least so many sequences, or none: others must pass while one is on its way to the head and back.
inline constexpr std::int64_t kFewestKept = 8;

/// The usual settings for a horizon of so many seconds.
[[nodiscard]] Settings of_horizon(double horizon);
/// Multiplies the horizon of settings by a factor.
void stretch(Settings& settings, double factor);
/// Families of settings for where no layout fits the usual ones. They are tried one after another until one gives a
/// layout. `guess`: seconds that all boundaries take on the fleet's uplinks.
[[nodiscard]] std::vector<std::vector<Settings>> settings_for_short_memory(double guess);
/// Settings for where the time of the boundaries says nothing about the horizon: for small work, whose weights,
/// latencies and kernels take longer; and for refuse(), which looks for how much memory a fleet lacks.
[[nodiscard]] std::vector<Settings> settings_of_any_work();

/// Everything that does not change from candidate to candidate.
struct Problem {
  const StageWork* work = nullptr;
  std::span<const fleet::DeviceProfile> devices;
  std::vector<double> memory, down, up, flops;     // of each device
  std::vector<double> piece_weights, piece_flops;  // of each piece: bytes of its weights, FLOP of a whole step
  double nic_out = 0, nic_in = 0;                  // of the server
  OwnerPlaces owners = OwnerPlaces::automatic;
  bool preload = true;
  std::shared_ptr<RunBook> book;  // of the work
};

/// The settings that are tried last, for slow downlinks: the weights of the largest piece may take longer on a downlink
/// than all sequences take to pass.
[[nodiscard]] std::vector<Settings> settings_of_slow_downlinks(const Problem& problem);

/// A stage while it is laid out.
struct StageDraft {
  explicit StageDraft(StageCost of) : cost(of) {}
  StageCost cost;
  double demand = 1;                  // weight with which it competes for uplink
  std::vector<std::size_t> replicas;  // indices of devices
  double uplink = 0;                  // bytes a second of its replicas' uplinks, as far as they are of use to it
};

/// The share of a stage's gradient that a device owns.
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
  double sending_s = 0;              // time of the uplink with most sums, for sending them
  double processors_s = 0;           // busy time of the busiest processor, for sequences and for sums that it owns
};

/// Bytes of all weights as they are sent.
[[nodiscard]] double weights_of(const StageWork& work);

/// Number of pieces that are the head or parts of it; 0 for the work of a round below the last one (rounds.cpp).
[[nodiscard]] std::int64_t head_pieces(const StageWork& work);
/// The lowest layer, as an example of a layer.
[[nodiscard]] StageCost typical_layer(const StageWork& work, std::int64_t chunk);

/// FLOP of a stage in a step: all sequences forward and backward, and the sums of gradients. `kept`: without
/// recomputation.
[[nodiscard]] double stage_flops(const StageWork& work, const StageCost& stage, bool kept = false);

/// The rate at which a device can send the results of a stage's sequences: limited by its uplink, by its downlink,
/// which must bring the operands, and by its processor.
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
  double per_byte_, per_flop_;  // bytes sent for each byte that comes in; for each FLOP
};

/// Replicas of the stage keep sequences, if the settings say so and the stage allows it.
[[nodiscard]] bool is_kept(const Settings& settings, const StageCost& stage);
/// The least number of sequences that a replica keeps, if it keeps any.
[[nodiscard]] std::int64_t least_kept(const StageWork& work);

/// Bytes that a replica of the stage needs at least: weights and the least number of open sequences.
[[nodiscard]] double replica_bytes(const StageDraft& draft);
/// The same with the least number of kept sequences, where is_kept().
[[nodiscard]] double replica_bytes(const StageWork& work, const StageDraft& draft, const Settings& settings);

/// Bytes by which an owner's sums and weights may exceed its exact share, since slices are of whole units.
[[nodiscard]] double rounding_bytes(const StageWork& work, const StageDraft& draft);

/// For each device: whether it may hold a stage, by Settings::only_owners and Settings::holding.
[[nodiscard]] std::vector<bool> may_replicate(const Problem& problem, const Settings& settings);

/// For each device: seconds of its busiest resource for one sequence at a typical layer.
[[nodiscard]] std::vector<double> passing_times(const Problem& problem, const Settings& settings);

/// At most Settings::even_stages stages of equal time, with their replicas; none where the pieces do not fit.
[[nodiscard]] std::vector<StageDraft> cut_evenly(const Problem& problem, const Settings& settings);

/// Cuts stages by the weights that devices can hold and can receive in time.
class StageCutter {
 public:
  /// Requires: both outlive it.
  StageCutter(const Problem& problem, const Settings& settings);
  /// Stages without replicas: the fleet's uplink is divided into `shares` shares, one for each stage, and the least
  /// device of a share bounds its stage. None where the pieces do not fit.
  [[nodiscard]] std::vector<StageDraft> cut(std::int64_t shares) const;

 private:
  struct Able {
    std::size_t device;
    double room;            // bytes of weights that its memory holds
    double bottom, deeper;  // bytes of weights that come in time for the lowest stage; more bytes for the highest
  };
  // Devices that may hold one stage, by the limits of the least of them.
  struct Share {
    double room = std::numeric_limits<double>::infinity();  // bytes of weights
    double flops = 0;                                       // FLOP a second, of all of its devices
    double memory = std::numeric_limits<double>::infinity();
  };
  [[nodiscard]] std::int64_t body() const;  // pieces without the head
  [[nodiscard]] std::vector<Share> deal(std::int64_t shares) const;

  const Problem& problem_;
  const Settings& settings_;
  std::vector<Able> able_;  // devices that may hold a stage, those with least room first
  double uplink_ = 0;       // of these devices together
};

/// Chooses the replicas of every stage. False where a stage gets none.
[[nodiscard]] bool deal_replicas(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages);
/// Exchanges devices between stages so that the replicas of each come closer to having room for its sums.
void make_room_for_sums(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages);
/// Chooses the owners of every stage's gradient for the horizon, and sets the layout's owners, groups and times. False
/// where sums do not fit.
[[nodiscard]] bool assign_owners(const Problem& problem, Layout& layout);

/// The problem of these devices. Requires: `work` and `devices` outlive it.
[[nodiscard]] Problem problem_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                 const StageOptions& options);
/// The candidate with the least forecast. With `all`, followed by all other candidates, and by some that are cut by
/// what processors can do or into stages of equal time, for a caller with a forecast of its own.
[[nodiscard]] std::vector<Layout> search_layouts(const Problem& problem, std::int64_t chunk, bool all);

/// The candidate of these settings; none where nothing fits.
[[nodiscard]] std::optional<Layout> lay_out(const Problem& problem, const Settings& settings);
/// The same stages and replicas with owners for other settings. Requires: the settings differ from the layout's only in
/// members that concern owners.
[[nodiscard]] std::optional<Layout> own_anew(const Problem& problem, const Layout& layout, const Settings& settings);

// Forecasts, in seconds from the begin of the step. `processors`: count the time of the stages' processors.

/// The time in which all sequences pass all stages, without gradients and without the server's interface.
[[nodiscard]] double chain_time(const Problem& problem, const Layout& layout, bool processors);
/// When a step ends whose owners are done at `end`, if the server's interface is counted.
[[nodiscard]] double beside_interface(const Problem& problem, const Layout& layout, double end);
/// When the last sequence has passed all stages, if processors also make the sums that their devices own.
[[nodiscard]] double last_passage(const Problem& problem, const Layout& layout);
/// When the step ends.
[[nodiscard]] double forecast(const Problem& problem, const Layout& layout, bool processors);
/// When enough replicas of a stage have its weights.
[[nodiscard]] double loading_time(const Problem& problem, const StageDraft& draft);
/// How long a phase of a round takes in which all sequences pass one way: forward, or (`back`) backward with the sums.
[[nodiscard]] double forecast_one_way(const Problem& problem, const Layout& layout, bool back);

}  // namespace cleave::plan::stages
