// Settings that the search tries: of a horizon, where memory is short, and where horizons are no guide.
#include <algorithm>
#include <numeric>
#include <utility>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

// Settings with other shares of memory for sums.
std::vector<Settings> more_room_for_sums(double guess) {
  std::vector<Settings> list;
  for (const double factor : {1.0, 2.0, 6.0, 20.0}) {
    for (const double sums : {0.1, 0.3, 0.45, 0.5}) {
      Settings& settings = list.emplace_back(of_horizon(guess * factor));
      settings.for_sums = sums;
    }
  }
  return list;
}

// Settings in which some devices hold no stage but only sums.
std::vector<Settings> devices_with_sums_alone(double guess) {
  std::vector<Settings> list;
  for (const double factor : {1.0, 2.0, 4.0, 8.0}) {
    for (const double only_owners : {0.25, 0.35, 0.45, 0.55, 0.65}) {
      Settings& settings = list.emplace_back(of_horizon(guess * factor));
      settings.for_sums = 0;
      settings.only_owners = only_owners;
    }
  }
  return list;
}

// The same with Settings::tight. Horizons are long, since downlinks may take longer than uplinks.
std::vector<Settings> memory_to_the_last(double guess) {
  std::vector<Settings> list;
  for (const double factor : {4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0}) {
    for (const double only_owners : {0.55, 0.6, 0.64, 0.66, 0.68}) {
      for (const std::int64_t owned_stages : {2, 3}) {
        Settings& settings = list.emplace_back(of_horizon(guess * factor));
        settings.for_sums = 0;
        settings.only_owners = only_owners;
        settings.tight = true;
        settings.owned_stages = owned_stages;
      }
    }
  }
  return list;
}

// Smaller stages, so that each device has room for sums: weights must come within a part of the usual time. For each
// part also with the usual additional time for the higher stages.
std::vector<Settings> smaller_stages(double guess) {
  std::vector<Settings> list;
  for (const double factor : {1.0, 2.0, 4.0, 8.0}) {
    for (const double loading : {0.07, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6}) {
      for (const double sums : {0.3, 0.45, 0.55}) {
        Settings settings = of_horizon(guess * factor);
        settings.loading *= loading;
        settings.for_sums = sums;
        list.push_back(settings);
        settings.deeper *= loading;
        list.push_back(settings);
      }
    }
  }
  return list;
}

}  // namespace

Settings of_horizon(double horizon) {
  const Settings usual;
  Settings settings;
  settings.loading = usual.loading / usual.owning * horizon;
  settings.deeper = usual.deeper / usual.owning * horizon;
  settings.owning = horizon;
  return settings;
}

void stretch(Settings& settings, double factor) {
  settings.loading *= factor;
  settings.deeper *= factor;
  settings.owning *= factor;
}

std::vector<std::vector<Settings>> settings_for_short_memory(double guess) {
  return {more_room_for_sums(guess), devices_with_sums_alone(guess), memory_to_the_last(guess), smaller_stages(guess)};
}

std::vector<Settings> settings_of_any_work() {
  // Room for sums beside stages, and devices with sums alone.
  constexpr std::pair<double, double> kRooms[] = {{0.25, 0}, {0.45, 0}, {0, 0.45}};
  std::vector<Settings> list;
  for (const double horizons : {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 6.0}) {
    for (const auto& [sums, only_owners] : kRooms) {
      Settings& settings = list.emplace_back(of_horizon(horizons * Settings{}.owning));
      settings.for_sums = sums;
      settings.only_owners = only_owners;
    }
  }
  return list;
}

std::vector<Settings> settings_of_slow_downlinks(const Problem& problem) {
  const double largest = *std::ranges::max_element(problem.piece_weights);
  const double downlinks = std::accumulate(problem.down.begin(), problem.down.end(), 0.0);
  const double loading = largest * static_cast<double>(problem.down.size()) / downlinks;
  std::vector<Settings> list;
  for (const double factor : {1.5, 3.0, 6.0, 12.0}) {
    for (const double sums : {0.1, 0.25, 0.45}) {
      Settings& settings = list.emplace_back(of_horizon(Settings{}.owning * factor * loading / Settings{}.loading));
      settings.for_sums = sums;
    }
  }
  return list;
}

}  // namespace cleave::plan::stages
