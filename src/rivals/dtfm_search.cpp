// The genetic search and the polishing of its best partitions.
#include "dtfm_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"

namespace cleave::rivals {

namespace {

using Labels = std::vector<std::size_t>;

constexpr std::size_t kCrossoverPoints = 5;
constexpr std::size_t kPolished = 4;                  // best partitions that are polished
constexpr double kWorkOfSearch = 1.5e10;              // elementary steps, about half a minute
constexpr double kWorkOfPolishing = 1e9;              // per partition
constexpr double kMostPolishing = 60'000;             // swaps tried per partition
constexpr double kHottest = 0.05, kColdest = 0.0003;  // temperatures of polishing, relative to the total
constexpr double kSoftness = 0.8, kSoftShare = 0.8;   // of the softened total, and the share of swaps that use it

// Draws in order from one counter-based stream.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint32_t stream) : random_(seed, Purpose::rivals, stream) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_.below(next_++, bound)); }
  double uniform() { return random_.uniform(next_++); }
  void shuffle(std::vector<std::size_t>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

struct Individual {
  Labels labels;
  double total_s = 0;
};

Groups groups_of(const Labels& labels, std::size_t count) {
  Groups groups(count);
  for (std::size_t v = 0; v < labels.size(); ++v) groups[labels[v]].push_back(v);
  return groups;
}

// Five labels of the one parent in the other; then devices of groups that are too large go to the first with room.
Labels cross(const Labels& from, const Labels& into, std::size_t groups, Draws& draws) {
  Labels child = into;
  std::vector<std::size_t> points(child.size());
  std::iota(points.begin(), points.end(), std::size_t{0});
  draws.shuffle(points);
  for (std::size_t i = 0; i < std::min(kCrossoverPoints, points.size()); ++i) child[points[i]] = from[points[i]];

  const std::size_t size = child.size() / groups;
  std::vector<std::size_t> sizes(groups, 0);
  for (const std::size_t label : child) ++sizes[label];
  for (std::size_t& label : child) {
    if (sizes[label] <= size) continue;
    const auto room = std::find_if(sizes.begin(), sizes.end(), [&](std::size_t s) { return s < size; });
    --sizes[label];
    ++*room;
    label = static_cast<std::size_t>(room - sizes.begin());
  }
  return child;
}

double work_of_matching(std::size_t size) { return static_cast<double>(size * size * (size + 8)) / 4; }

double work_of_path(std::size_t stages) {
  if (stages > kExactPathNodes) return 4.0 * static_cast<double>(stages * stages * stages);
  return static_cast<double>((std::size_t{1} << stages) * stages * stages) / 2;
}

// Simulated annealing by swaps of two devices of different groups. It walks on the softened total, cooling, and over
// its last part on the total itself; the best partition by the exact total is kept.
void polish(DtfmObjective& objective, Individual& best, std::uint64_t seed, std::uint32_t stream) {
  const std::size_t n = best.labels.size(), stages = objective.stages();
  if (stages < 2) return;
  const double work = 2 * static_cast<double>(stages) * work_of_matching(objective.pipelines()) + work_of_path(stages) +
                      static_cast<double>(n * objective.pipelines());
  const auto moves = static_cast<std::int64_t>(std::clamp(kWorkOfPolishing / work, 200.0, kMostPolishing));
  Draws draws(seed, stream);
  Labels labels = best.labels;
  double softness = kSoftness, here_s = objective.soft_total_s(groups_of(labels, stages), softness);
  const double hot_s = kHottest * here_s, cold_s = kColdest * here_s;
  for (std::int64_t t = 0; t < moves; ++t) {
    const double done = static_cast<double>(t) / static_cast<double>(moves);
    if (softness > 0 && done >= kSoftShare) {
      softness = 0;
      labels = best.labels;
      here_s = best.total_s;
    }
    const double temperature_s = hot_s * std::pow(cold_s / hot_s, done);
    const std::size_t a = draws.below(n), b = draws.below(n);
    const double chance = draws.uniform();
    if (labels[a] == labels[b]) continue;
    std::swap(labels[a], labels[b]);
    const Groups groups = groups_of(labels, stages);
    const double there_s = objective.soft_total_s(groups, softness);
    if (there_s > here_s && chance >= std::exp((here_s - there_s) / temperature_s)) {
      std::swap(labels[a], labels[b]);
      continue;
    }
    here_s = there_s;
    const double total_s = softness > 0 ? objective.score(groups).total_s() : there_s;
    if (total_s < best.total_s) best = {labels, total_s};
  }
}

}  // namespace

std::int64_t affordable_trials(std::size_t devices, std::size_t stages, std::int64_t wanted) {
  const std::size_t size = devices / stages;
  const double cycles = static_cast<double>(devices) *
                        (2.0 * static_cast<double>(devices) + static_cast<double>(stages + size * size / 4));
  const double scoring = static_cast<double>(stages * stages) / 2 * work_of_matching(size) + work_of_path(stages);
  const double fit = kWorkOfSearch / (cycles + scoring);
  return std::min(wanted, std::max<std::int64_t>(20, static_cast<std::int64_t>(fit)));
}

DtfmResult search_partition(DtfmObjective& objective, const DtfmSearchOptions& options) {
  const std::size_t n = objective.devices(), stages = objective.stages();
  CLEAVE_ASSERT(stages >= 1 && n % stages == 0, "{} devices in {} groups", n, stages);
  Draws draws(options.seed, 2);
  const auto score_of = [&](const Labels& labels) { return objective.score(groups_of(labels, stages)).total_s(); };

  // 1. A population of random partitions.
  std::vector<Individual> population;
  for (std::int64_t p = 0; p < std::max<std::int64_t>(2, options.population); ++p) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    draws.shuffle(order);
    Individual individual;
    individual.labels.resize(n);
    for (std::size_t i = 0; i < n; ++i) individual.labels[order[i]] = i / (n / stages);
    individual.total_s = score_of(individual.labels);
    population.push_back(std::move(individual));
  }
  const auto better = [](const Individual& a, const Individual& b) { return a.total_s < b.total_s; };
  const auto best = [&] { return std::min_element(population.begin(), population.end(), better); };

  // 2. Trials. Parents may be the same.
  for (std::int64_t t = 0; t < options.trials; ++t) {
    const std::size_t first = draws.below(population.size()), second = draws.below(population.size());
    Individual child;
    child.labels = cross(population[first].labels, population[second].labels, stages, draws);
    improve_by_cycles(objective, child.labels);
    child.total_s = score_of(child.labels);
    const std::size_t worse = population[first].total_s > population[second].total_s ? first : second;
    if (child.total_s <= population[worse].total_s) population[worse] = std::move(child);
    if (options.progress && (t + 1) % 100 == 0) options.progress(t + 1, options.trials, best()->total_s);
  }

  // 3. Polish the best few and keep the best of all.
  std::stable_sort(population.begin(), population.end(), better);
  if (options.polish) {
    for (std::size_t p = 0; p < std::min(kPolished, population.size()); ++p) {
      polish(objective, population[p], options.seed, static_cast<std::uint32_t>(16 + p));
    }
  }
  DtfmResult result;
  const Individual chosen = *best();
  result.groups = groups_of(chosen.labels, stages);
  if (options.polish) {
    std::stable_sort(population.begin(),
                     population.begin() + static_cast<std::ptrdiff_t>(std::min(kPolished, population.size())), better);
    for (std::size_t p = 0; p < std::min(kPolished, population.size()); ++p) {
      if (population[p].labels != chosen.labels) result.others.push_back(groups_of(population[p].labels, stages));
    }
  }
  result.score = objective.score(result.groups);
  result.trials = options.trials;
  return result;
}

}  // namespace cleave::rivals
