// The search: candidates for a few horizons, then for other shares of memory and groups beside the best of them.
#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "stages/finish.hpp"
#include "stages/layout.hpp"
#include "stages/refusal.hpp"

namespace cleave::plan {

namespace stages {

namespace {

// The forecast: sequences pass the slowest stage while the stages below and above fill and drain, several times a first
// chunk's way since chunks wait for each other; the last sums follow. Whatever takes longest is delayed a little by
// what takes nearly as long. Fitted to simulated steps of the fleets of docs/measurements/stages.md.
constexpr double kFillings = 4.5, kTails = 1.3, kSharpness = 8, kGaps = 1.03;
// Of what the chain adds to its slowest stage, a server's interface that is busy throughout is idle for this share.
constexpr double kBeside = 0.5;

// What a departure from the usual settings must bring by its forecast, which is less sure there.
constexpr double kWorth = 0.9;

// That are tried, of the time that all boundaries take on the fleet's uplinks.
constexpr double kHorizons[] = {0.3, 0.4, 0.5, 0.58, 0.66, 0.75, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0};

// Shares of the devices without a stage that are tried where memory is short.
constexpr double kOnlyOwners[] = {0.25, 0.35, 0.45, 0.55, 0.65};

// Groups of owners are searched where downlinks are no more than so many times as fast as uplinks.
constexpr double kAsymmetric = 4;

// Of one candidate, with more and more stages: deals of replicas, and those of them whose sums may not fit.
constexpr std::int64_t kMostDeals = 16, kMostWithoutOwners = 8;

}  // namespace

double weights_of(const StageWork& work) {
  double sum = 0;
  for (const model::Piece& piece : work.pieces)
    sum += static_cast<double>(piece.weight_elements() * size_of(work.wire) + 4 * piece.vector_elements());
  return sum;
}

Settings of_horizon(double horizon) {
  const Settings usual;
  Settings settings;
  settings.loading = usual.loading / usual.owning * horizon;
  settings.deeper = usual.deeper / usual.owning * horizon;
  settings.owning = horizon;
  return settings;
}

std::optional<Layout> lay_out(const Problem& problem, const Settings& settings) {
  const std::int64_t pieces = std::ssize(problem.work->pieces);
  const double memory = *std::ranges::max_element(problem.memory);
  std::int64_t deals = 0, without_owners = 0;
  for (auto shares = std::max<std::int64_t>(1, static_cast<std::int64_t>(weights_of(*problem.work) / memory) - 1);
       shares <= 3 * pieces && deals < kMostDeals; shares += 1 + shares / 40) {
    Layout layout{};
    layout.settings = settings;
    layout.roles = cut_stages(problem, settings, shares);
    if (layout.roles.empty()) continue;
    ++deals;
    if (!deal_replicas(problem, settings, layout.roles)) continue;
    if (assign_owners(problem, layout)) return layout;
    if (settings.only_owners > 0) {
      if (++without_owners == kMostWithoutOwners) break;
      continue;
    }
    // Where sums do not fit beside the replicas as they were dealt by uplink, they are dealt again by memory.
    layout.owners.clear();
    layout.groups.clear();
    layout.gradients_s = 0;
    make_room_for_sums(problem, settings, layout.roles);
    if (assign_owners(problem, layout)) return layout;
    if (++without_owners == kMostWithoutOwners) break;
  }
  return std::nullopt;
}

double forecast(const Problem& problem, const Layout& layout) {
  const StageWork& work = *problem.work;
  double slowest = 0, filling = 0, loading = 0, elements = 0, out = 0, in = 0, sent = 0, uplinks = 0;
  for (std::size_t s = 0; s < layout.roles.size(); ++s) {
    const Role& role = layout.roles[s];
    double up = 0, down = 0, flops = 0;
    for (const std::size_t i : role.replicas) {
      up += problem.up[i];
      down += problem.down[i];
      flops += problem.flops[i];
    }
    const auto boundary = static_cast<double>(role.cost.boundary(work.tokens()).value());
    const double passes = role.cost.is_head() || !role.cost.backward() ? 1 : 2;
    slowest = std::max(slowest, passes * boundary / up);
    const auto count = static_cast<double>(role.replicas.size());
    const auto chunk = static_cast<double>(role.cost.boundary(layout.settings.chunk).value());
    filling +=
        chunk * count * (1 / up + 1 / down) + role.cost.forward(0, layout.settings.chunk).value() * count / flops;
    if (!problem.preload) loading += count * static_cast<double>(role.cost.weights().value()) / down;
    const std::int64_t size = layout.groups[s] == 1 ? size_of(work.wire) : layout.groups[s] * sum_bytes(work.wire);
    elements += role.cost.gradient_elements();
    sent += role.cost.gradient_elements() * static_cast<double>(size);
    in += passes * boundary;
    out += (passes == 2 ? 3 : 1) * boundary + count * static_cast<double>(role.cost.weights().value());
  }
  for (const Owned& owned : layout.owners) {
    const Role& role = layout.roles[owned.stage];
    const double own =
        owned.replica
            ? std::min(1.0, static_cast<double>(layout.groups[owned.stage]) / static_cast<double>(role.replicas.size()))
            : 0;
    out += (role.cost.is_head() ? 1 : 2) * (1 - own) * static_cast<double>(role.cost.boundary(work.tokens()).value()) /
           static_cast<double>(layout.groups[owned.stage]);
  }
  for (const double up : problem.up) uplinks += up;
  // Before the first chunk comes up and after the last one has.
  const double around = kFillings * filling + kTails * elements * static_cast<double>(size_of(work.wire)) / uplinks;
  const double chain = slowest + around + loading;
  const double links = std::pow(std::pow(chain, kSharpness) + std::pow(layout.gradients_s, kSharpness), 1 / kSharpness);
  const double interface = std::max(out / problem.nic_out, (in + sent) / problem.nic_in) +
                           kBeside * (kFillings * filling + kTails * sent / uplinks);
  return kGaps * std::pow(std::pow(links, kSharpness) + std::pow(interface, kSharpness), 1 / kSharpness);
}

namespace {

class Search {
 public:
  Search(const Problem& problem, std::int64_t chunk) : problem_(problem) {
    if (chunk > 0) chunk_ = chunk;
  }

  void try_settings(Settings settings, double worth = 1) {
    settings.chunk = chunk_;
    std::optional<Layout> layout = lay_out(problem_, settings);
    if (!layout) return;
    const double time = forecast(problem_, *layout);
    if (best_ && time >= worth * time_) return;
    best_ = std::move(layout);
    time_ = time;
  }

  void run() {
    double uplink = 0, boundary = 0;
    for (const double up : problem_.up) uplink += up;
    boundary = static_cast<double>(problem_.work->tokens() * problem_.work->pieces.front().width *
                                   size_of(problem_.work->wire));
    const double guess = boundary * static_cast<double>(problem_.work->pieces.size()) / uplink;
    for (const double factor : kHorizons) try_settings(of_horizon(guess * factor));
    if (!best_) {
      worth_ = 1;
      for (const double factor : {1.0, 2.0, 6.0, 20.0}) {
        for (const double sums : {0.1, 0.3, 0.45, 0.5}) {
          Settings settings = of_horizon(guess * factor);
          settings.for_sums = sums;
          try_settings(settings);
        }
      }
    }
    // Where sums find no room beside stages, some devices hold sums alone.
    if (!best_) {
      for (const double factor : {1.0, 2.0, 4.0, 8.0}) {
        for (const double only_owners : kOnlyOwners) {
          Settings settings = of_horizon(guess * factor);
          settings.for_sums = 0;
          settings.only_owners = only_owners;
          try_settings(settings);
        }
      }
    }
    if (!best_) return;
    vary([](Settings& s) { s.groups = 4; });
    if (groups_may_pay()) try_groups(guess);
    vary([](Settings& s) { s.groups = 32; }, best_->settings.groups > 1 ? 1 : worth_);
    for (const double owning : {0.5, 0.8, 1.25}) vary([&](Settings& s) { s.owning *= owning; });
    for (const double sums : {0.1, 0.35}) vary([&](Settings& s) { s.for_sums = sums; });
    for (const double loading : {0.8, 1.25}) vary([&](Settings& s) { s.loading *= loading; });
    const bool limited = !std::isinf(problem_.nic_out);
    if (limited) {
      for (const std::int64_t owners : {8, 4, 2}) vary([&](Settings& s) { s.owners = owners; });
    }
    if (groups_may_pay()) {
      for (const std::int64_t groups : {2, 4, 8, 16}) {
        vary([&](Settings& s) {
          s.fewest_groups = groups;
          s.groups = std::max(s.groups, groups);
        });
      }
    }
    if (!limited) return;
    for (const double factor : {1.25, 1.6}) {
      vary([&](Settings& s) {
        s.loading *= factor;
        s.owning *= factor;
      });
    }
  }

  const std::optional<Layout>& best() const { return best_; }
  double time() const { return time_; }

 private:
  // Groups save bytes down and cost bytes up.
  bool groups_may_pay() const {
    double up = 0, down = 0;
    for (const double rate : problem_.up) up += rate;
    for (const double rate : problem_.down) down += rate;
    return kAsymmetric * up >= down;
  }

  // With several groups another number of stages is best, and other weights are worth waiting for.
  void try_groups(double guess) {
    Search grouped(problem_, chunk_);
    for (const std::int64_t groups : {2, 8}) {
      for (const double loading : {1.0, 2.0}) {
        for (const double factor : kHorizons) {
          Settings settings = of_horizon(guess * factor);
          settings.loading *= loading;
          settings.groups = 4 * groups;
          settings.fewest_groups = groups;
          grouped.try_settings(settings);
        }
      }
    }
    if (!grouped.best_ || grouped.time_ >= worth_ * time_) return;
    best_ = std::move(grouped.best_);
    time_ = grouped.time_;
  }

  template <class Change>
  void vary(Change change) {
    vary(change, worth_);
  }
  template <class Change>
  void vary(Change change, double worth) {
    Settings settings = best_->settings;
    change(settings);
    try_settings(settings, worth);
  }

  const Problem& problem_;
  std::int64_t chunk_ = kChunkTokens;
  std::optional<Layout> best_;
  double time_ = 0;
  double worth_ = kWorth;  // 1 where the usual settings give no layout
};

}  // namespace
}  // namespace stages

namespace {

stages::Problem problem_of(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                           const StageOptions& options) {
  stages::Problem problem;
  problem.work = &work;
  problem.devices = devices;
  problem.nic_out = options.server.nic_out.value();
  problem.nic_in = options.server.nic_in.value();
  problem.owners = options.owners;
  problem.preload = options.preload;
  for (const fleet::DeviceProfile& device : devices) {
    problem.memory.push_back(static_cast<double>(device.memory.value()));
    problem.down.push_back(std::min(device.downlink.value(), options.server.nic_out.value()));
    problem.up.push_back(std::min(device.uplink.value(), options.server.nic_in.value()));
    problem.flops.push_back(device.compute.value());
  }
  return problem;
}

}  // namespace

std::optional<StagePlan> find_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                                     const StageOptions& options) {
  if (work.pieces.empty() || devices.empty()) return std::nullopt;
  const stages::Problem problem = problem_of(work, devices, options);
  stages::Search search(problem, std::min(options.chunk, work.seq));
  search.run();
  if (!search.best()) return std::nullopt;
  StagePlan plan = stages::finish(problem, *search.best());
  plan.forecast = Seconds(search.time());
  return plan;
}

StagePlan plan_stages(const StageWork& work, std::span<const fleet::DeviceProfile> devices,
                      const StageOptions& options) {
  if (work.pieces.empty()) throw InputError("the model has no layers to be laid out in stages");
  if (devices.empty()) throw InputError("there are no devices");
  std::optional<StagePlan> plan = find_stages(work, devices, options);
  if (!plan) stages::refuse(problem_of(work, devices, options));
  return std::move(*plan);
}

}  // namespace cleave::plan
