// Small frames in one message, and messages that are none.
#include "batch.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cleave/base/random.hpp"

namespace cleave::comm {
namespace {

Frame patterned(std::int64_t bytes, std::int64_t seed) {
  Frame frame(bytes);
  for (std::int64_t i = 0; i < bytes; ++i) frame.data()[i] = static_cast<std::byte>(i * 7 + seed);
  return frame;
}

bool same(const Frame& a, const Frame& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size())) == 0);
}

struct Found {
  Frame frame;
  bool notice;
};
std::vector<Found> entries_of(std::span<const std::byte> message) {
  std::vector<Found> found;
  for_each_of_batch(message, [&](Frame frame, bool notice) { found.push_back({std::move(frame), notice}); });
  return found;
}

TEST(Batch, ComesOutAsItWentIn) {
  Batch batch;
  for (int turn = 0; turn < 2; ++turn) {
    std::int64_t added = 0;
    for (Frame next = patterned(0, 0); batch.has_room_for(next); next = patterned(added * 13 % 700, added)) {
      batch.add(std::move(next), added % 3 == 0);
      ++added;
    }
    EXPECT_GT(added, 100);
    EXPECT_EQ(batch.count(), static_cast<std::size_t>(added));
    const Frame message = batch.take();
    EXPECT_TRUE(batch.empty());
    EXPECT_LE(message.size(), Batch::kMost);
    const std::vector<Found> found = entries_of(message.bytes());
    ASSERT_EQ(std::ssize(found), added);
    for (std::int64_t i = 0; i < added; ++i) {
      EXPECT_TRUE(same(found[static_cast<std::size_t>(i)].frame, patterned(i * 13 % 700, i))) << i;
      EXPECT_EQ(found[static_cast<std::size_t>(i)].notice, i % 3 == 0);
    }
  }
}

TEST(Batch, OneAloneIsAsItWas) {
  Batch batch;
  batch.add(patterned(100, 5), true);
  const auto [frame, notice] = batch.take_only();
  EXPECT_TRUE(same(frame, patterned(100, 5)));
  EXPECT_TRUE(notice);
  EXPECT_TRUE(batch.empty());
  EXPECT_TRUE(batch.has_room_for(patterned(Batch::kMost - 8, 0)));
}

// Whatever comes: nothing beyond the message is read, and an empty frame stands for what is not understood.
TEST(Batch, DamagedMessages) {
  Batch batch;
  for (std::int64_t i = 0; i < 5; ++i) batch.add(patterned(40 + i, i), false);
  const Frame message = batch.take();
  for (std::int64_t length = 0; length < message.size(); ++length) {
    const std::vector<std::byte> cut(message.data(), message.data() + length);
    const std::vector<Found> found = entries_of(cut);
    EXPECT_LE(found.size(), 5U);
    const bool between_entries = length == 0 || (length >= 48 && (length - 48) % 56 == 0);  // of 40, 41, ... bytes
    if (!between_entries) {
      ASSERT_FALSE(found.empty());
      EXPECT_TRUE(found.back().frame.empty());
    }
  }
  const std::vector<Found> many = entries_of(std::vector<std::byte>(Batch::kMost + 8));
  ASSERT_EQ(many.size(), 1U);
  EXPECT_TRUE(many[0].frame.empty());
  const Random random(3, Purpose::test);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    std::vector<std::byte> damaged(message.bytes().begin(), message.bytes().end());
    for (std::uint64_t flips = 0; flips < 1 + i % 3; ++flips) {
      damaged[random.below(8 * i + 2 * flips, damaged.size())] =
          static_cast<std::byte>(random.below(8 * i + 2 * flips + 1, 256));
    }
    std::int64_t bytes = 0;
    for (const Found& found : entries_of(damaged)) bytes += found.frame.size();
    EXPECT_LE(bytes, message.size());
  }
}

}  // namespace
}  // namespace cleave::comm
