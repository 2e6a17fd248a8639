// The tournament's winner is the least of all keys, whatever was set and cleared before.
#include "alone/tournament.hpp"

#include <gtest/gtest.h>

#include <map>

#include "cleave/base/random.hpp"

namespace cleave::timing {
namespace {

TEST(Tournament, TheLeastKeyIsNext) {
  for (const std::size_t places : {1U, 2U, 7U, 64U, 100U}) {
    Tournament tournament(places);
    std::map<std::size_t, EventKey> kept;
    const Random random(3, Purpose::test, static_cast<std::uint32_t>(places));
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const auto place = static_cast<std::size_t>(random.below(3 * i, static_cast<std::uint32_t>(places)));
      if (random.below(3 * i + 1, 3) == 0) {
        tournament.clear(place);
        kept.erase(place);
      } else {
        // Few times, so that many are equal and the order decides.
        const EventKey key{Seconds(static_cast<double>(random.below(3 * i + 2, 5))), i};
        tournament.set(place, key);
        kept[place] = key;
        EXPECT_EQ(tournament.key(place), key);
      }
      ASSERT_EQ(tournament.empty(), kept.empty());
      if (kept.empty()) continue;
      const auto least =
          std::min_element(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      ASSERT_EQ(tournament.first(), least->first);
      ASSERT_EQ(tournament.next(), least->second);
    }
  }
}

TEST(Tournament, TheLongestThenTheFirstToCome) {
  Tournament tournament(4);
  tournament.set_longest(0, Seconds(1), 5);
  tournament.set_longest(1, Seconds(2), 7);
  tournament.set_longest(2, Seconds(2), 6);
  tournament.set_longest(3, Seconds(0), 1);
  std::vector<std::size_t> order;
  while (!tournament.empty()) {
    order.push_back(tournament.first());
    tournament.clear(order.back());
  }
  EXPECT_EQ(order, (std::vector<std::size_t>{2, 1, 0, 3}));
}

TEST(Tournament, ANeverKeyIsNoKey) {
  Tournament tournament(2);
  tournament.set(1, {Seconds(3), 1});
  tournament.set(1, kNever);
  EXPECT_TRUE(tournament.empty());
  EXPECT_EQ(tournament.next(), kNever);
}

}  // namespace
}  // namespace cleave::timing
