// DTFM's objective against a second, literal computation; its search against every partition of small fleets.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "dtfm_objective.hpp"
#include "dtfm_search.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

constexpr double kGradient = 3e6, kActivation = 1e6;  // bytes

struct DelayCase {
  std::vector<fleet::DeviceProfile> devices;
  fleet::LinkMatrix links;
  std::vector<std::size_t> members;
};

// Symmetric random delays and rates.
DelayCase random_case(std::int64_t n, std::uint64_t seed) {
  DelayCase c{equal_devices(n, 1e12, 1e9), fleet::LinkMatrix(n, {Seconds(0), BytesPerSecond(1e9)}), {}};
  const Random random(seed, Purpose::test, 1);
  std::uint64_t next = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    c.members.push_back(static_cast<std::size_t>(i));
    for (std::int64_t j = 0; j < i; ++j) {
      const fleet::Link link{Seconds(0.2 * random.uniform(next)), BytesPerSecond(1e6 + 1e7 * random.uniform(next + 1))};
      next += 2;
      c.links.set(DeviceId(i), DeviceId(j), link);
      c.links.set(DeviceId(j), DeviceId(i), link);
    }
  }
  return c;
}

double delay_s(const DelayCase& c, std::size_t i, std::size_t j) {
  return c.links.at(DeviceId(static_cast<std::int64_t>(i)), DeviceId(static_cast<std::int64_t>(j))).latency.value();
}
double rate(const DelayCase& c, std::size_t i, std::size_t j) {
  return c.links.at(DeviceId(static_cast<std::int64_t>(i)), DeviceId(static_cast<std::int64_t>(j))).rate.value();
}

// The objective as the file comment of dtfm_objective.hpp states it, by trying everything.
double literal_total_s(const DelayCase& c, Groups groups) {
  const std::size_t size = groups.front().size();
  double data_parallel_s = 0;
  for (const auto& group : groups) {
    for (const std::size_t i : group) {
      double sum_s = 0;
      for (const std::size_t j : group) {
        if (i != j) sum_s += 2 * (delay_s(c, i, j) + kGradient / (rate(c, i, j) * static_cast<double>(size)));
      }
      data_parallel_s = std::max(data_parallel_s, sum_s);
    }
  }
  const auto between_s = [&](const std::vector<std::size_t>& a, std::vector<std::size_t> b) {
    double best_s = std::numeric_limits<double>::infinity();
    std::sort(b.begin(), b.end());
    do {
      double dearest_s = 0;
      for (std::size_t k = 0; k < size; ++k) {
        dearest_s = std::max(dearest_s, delay_s(c, a[k], b[k]) + kActivation / rate(c, a[k], b[k]));
      }
      best_s = std::min(best_s, dearest_s);
    } while (std::next_permutation(b.begin(), b.end()));
    return best_s;
  };
  double path_s = std::numeric_limits<double>::infinity();
  std::sort(groups.begin(), groups.end());
  do {
    double length_s = 0;
    for (std::size_t s = 0; s + 1 < groups.size(); ++s) length_s += between_s(groups[s], groups[s + 1]);
    path_s = std::min(path_s, length_s);
  } while (std::next_permutation(groups.begin(), groups.end()));
  return data_parallel_s + 2 * path_s;
}

// Calls `visit` with every partition of n devices into `groups` groups of one size, up to the order of groups.
void for_each_partition(std::size_t n, std::size_t groups, const std::function<void(const Groups&)>& visit) {
  const std::size_t size = n / groups;
  Groups partition;
  const std::function<void(std::size_t)> place = [&](std::size_t device) {
    if (device == n) return visit(partition);
    for (std::size_t g = 0; g < partition.size(); ++g) {
      if (partition[g].size() == size) continue;
      partition[g].push_back(device);
      place(device + 1);
      partition[g].pop_back();
    }
    if (partition.size() == groups) return;
    partition.push_back({device});
    place(device + 1);
    partition.pop_back();
  };
  place(0);
}

TEST(DtfmObjective, EqualsItsDefinition) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const DelayCase c = random_case(8, seed);
    const Network network(c.devices, c.links);
    for (const std::size_t stages : {2, 4}) {
      DtfmObjective objective(network, c.members, stages, kGradient, kActivation);
      std::size_t count = 0;
      for_each_partition(8, stages, [&](const Groups& groups) {
        if (count++ % 7 != 0) return;
        const double expected = literal_total_s(c, groups);
        EXPECT_NEAR(objective.score(groups).total_s(), expected, 1e-9 * expected);
      });
    }
  }
}

TEST(DtfmSearch, FindsTheBestOfEveryPartition) {
  for (const auto& [devices, stages] : {std::pair(6, 3), std::pair(6, 2), std::pair(8, 4), std::pair(8, 2)}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const DelayCase c = random_case(devices, 100 + seed);
      const Network network(c.devices, c.links);
      const auto count = static_cast<std::size_t>(stages);
      DtfmObjective objective(network, c.members, count, kGradient, kActivation);
      double best_s = std::numeric_limits<double>::infinity();
      for_each_partition(c.members.size(), count,
                         [&](const Groups& groups) { best_s = std::min(best_s, objective.score(groups).total_s()); });
      const DtfmResult result =
          search_partition(objective, {.population = 100, .trials = 400, .seed = seed, .progress = {}});
      EXPECT_NEAR(result.score.total_s(), best_s, 1e-9 * best_s) << devices << " devices, " << stages << " stages";
    }
  }
}

TEST(DtfmSearch, IsBalancedAndRepeatable) {
  const DelayCase c = random_case(24, 9);
  const Network network(c.devices, c.links);
  DtfmObjective objective(network, c.members, 4, kGradient, kActivation), again = objective;
  const DtfmSearchOptions options{.population = 20, .trials = 60, .seed = 5, .progress = {}};
  const DtfmResult result = search_partition(objective, options);
  EXPECT_EQ(result.groups, search_partition(again, options).groups);
  std::vector<int> seen(24, 0);
  for (const auto& group : result.groups) {
    EXPECT_EQ(group.size(), 6U);
    for (const std::size_t device : group) ++seen[device];
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

// The genetic search alone, without polishing, on four cities: better than the best of its random population.
TEST(DtfmSearch, EvolutionImprovesOnRandomPartitions) {
  DelayCase c = random_case(32, 4);
  const fleet::LinkMatrix cities = random_case(4, 4).links;
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t j = 0; j < 32; ++j) {
      const DeviceId a(i), b(j), city(i / 8), other(j / 8);
      c.links.set(a, b, i / 8 == j / 8 ? fleet::Link{Seconds(0.001), BytesPerSecond(5e7)} : cities.at(city, other));
    }
  }
  const Network network(c.devices, c.links);
  DtfmObjective objective(network, c.members, 4, kGradient, kActivation);
  const auto total_s = [&](std::int64_t trials) {
    return search_partition(objective,
                            {.population = 100, .trials = trials, .seed = 1, .polish = false, .progress = {}})
        .score.total_s();
  };
  EXPECT_LT(total_s(500), 0.9 * total_s(0));
}

// Two clusters with slow links between: stages take their devices from both, so that pipelines stay within one.
TEST(DtfmSearch, KeepsPipelinesWithinClusters) {
  DelayCase c{equal_devices(8, 1e12, 1e9), fleet::LinkMatrix(8, {Seconds(0.5), BytesPerSecond(1e5)}), {}};
  for (std::int64_t i = 0; i < 8; ++i) {
    c.members.push_back(static_cast<std::size_t>(i));
    for (std::int64_t j = 0; j < 8; ++j) {
      if (i / 4 == j / 4) c.links.set(DeviceId(i), DeviceId(j), {Seconds(0.001), BytesPerSecond(1e8)});
    }
  }
  const Network network(c.devices, c.links);
  DtfmObjective objective(network, c.members, 4, 1e3, 1e8);
  const DtfmResult result = search_partition(objective, {.population = 50, .trials = 200, .seed = 0, .progress = {}});
  const Groups stages = objective.pipelines_of(result.groups);
  ASSERT_EQ(stages.size(), 4U);
  for (std::size_t pipeline = 0; pipeline < 2; ++pipeline) {
    for (const auto& stage : stages) EXPECT_EQ(stage[pipeline] / 4, stages[0][pipeline] / 4);
  }
}

// Hops and groups of the world-wide scenario, worked out by hand.
TEST(DtfmObjective, FiguresOfTheWorldWideScenario) {
  constexpr double kGbit = 1e9 / 8;
  const auto pair = [](double delay, double gbit) {
    DelayCase c{equal_devices(8, 1e12, 1e9), fleet::LinkMatrix(8, {Seconds(delay), BytesPerSecond(gbit * kGbit)}), {}};
    c.members.resize(8);
    std::iota(c.members.begin(), c.members.end(), std::size_t{0});
    return c;
  };
  struct Row {
    double delay_s, gbit, hop_s, group_s;
  };
  for (const Row& row : {Row{0.124, 0.46, 8.32, 21.5}, Row{0.223, 0.36, 10.70, 28.4}, Row{0.005, 2, 1.89, 4.6}}) {
    const DelayCase c = pair(row.delay_s, row.gbit);
    const Network network(c.devices, c.links);
    const DtfmObjective objective(network, c.members, 1, 0.65e9, 0.471249223e9);
    EXPECT_NEAR(objective.hop_s(0, 1), row.hop_s, 0.005);
    EXPECT_NEAR(objective.group_cost_s(c.members), row.group_s, 0.05);
  }
}

}  // namespace
}  // namespace cleave::rivals
