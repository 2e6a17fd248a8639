// Embedding forward, and its gradient as the transpose of it, in a fixed order of additions.
#include "cleave/kernels/embedding.hpp"

#include <gtest/gtest.h>

#include "cleave/base/error.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

constexpr std::int64_t kVocabulary = 23, kSeq = 10, kBatch = 7, kDim = 300, kPositions = 15, kOffset = 2;

std::vector<std::int32_t> tokens() {
  const Random random(2, Purpose::test, 0);
  std::vector<std::int32_t> all;
  for (std::uint64_t r = 0; r < kSeq * kBatch; ++r)
    all.push_back(static_cast<std::int32_t>(random.below(r, kVocabulary)));
  return all;
}

TEST(Embedding, AddsTokenAndPosition) {
  const Floats wte = noise(kVocabulary * kDim, 1), wpe = noise(kPositions * kDim, 2);
  Floats with(kSeq * kBatch * kDim), without(with.size());
  Parallel two(2);
  const auto t = tokens();
  embed(two, t, kSeq, {wte.data(), kVocabulary, kDim}, {wpe.data(), kPositions, kDim}, kOffset,
        {with.data(), kSeq * kBatch, kDim});
  embed(two, t, kSeq, {wte.data(), kVocabulary, kDim}, {}, 0, {without.data(), kSeq * kBatch, kDim});
  for (std::int64_t r = 0; r < kSeq * kBatch; ++r)
    for (std::int64_t j = 0; j < kDim; ++j) {
      const float token = wte[static_cast<std::size_t>(t[static_cast<std::size_t>(r)] * kDim + j)];
      const float position = wpe[static_cast<std::size_t>((r % kSeq + kOffset) * kDim + j)];
      ASSERT_EQ(with[static_cast<std::size_t>(r * kDim + j)], token + position);
      ASSERT_EQ(without[static_cast<std::size_t>(r * kDim + j)], token);
    }
}

TEST(Embedding, GradientAddsEveryRowInOrder) {
  const Floats dx = noise(kSeq * kBatch * kDim, 3), start_wte = noise(kVocabulary * kDim, 4),
               start_wpe = noise(kPositions * kDim, 5);
  const auto t = tokens();
  Floats expected_wte = start_wte, expected_wpe = start_wpe;
  for (std::int64_t r = 0; r < kSeq * kBatch; ++r)
    for (std::int64_t j = 0; j < kDim; ++j) {
      const float gradient = dx[static_cast<std::size_t>(r * kDim + j)];
      expected_wte[static_cast<std::size_t>(t[static_cast<std::size_t>(r)] * kDim + j)] += gradient;
      expected_wpe[static_cast<std::size_t>((r % kSeq + kOffset) * kDim + j)] += gradient;
    }
  for (const int threads : {1, 2, 3}) {
    Parallel parallel(threads);
    Floats dwte = start_wte, dwpe = start_wpe;
    embed_backward(parallel, t, kSeq, {dx.data(), kSeq * kBatch, kDim}, {dwte.data(), kVocabulary, kDim},
                   {dwpe.data(), kPositions, kDim}, kOffset);
    EXPECT_TRUE(same_bits(dwte, expected_wte));
    EXPECT_TRUE(same_bits(dwpe, expected_wpe));
    dwte = start_wte;
    embed_backward(parallel, t, kSeq, {dx.data(), kSeq * kBatch, kDim}, {dwte.data(), kVocabulary, kDim}, {}, 0);
    EXPECT_TRUE(same_bits(dwte, expected_wte));
    dwpe = start_wpe;  // a frozen token table, trained positions
    embed_backward(parallel, t, kSeq, {dx.data(), kSeq * kBatch, kDim}, {}, {dwpe.data(), kPositions, kDim}, kOffset);
    EXPECT_TRUE(same_bits(dwpe, expected_wpe));
  }
}

TEST(Embedding, AFrozenTableGetsNoGradient) {
  const Floats dx = noise(kSeq * kBatch * kDim, 3);
  Floats alone(kPositions * kDim), both(kPositions * kDim), dwte(kVocabulary * kDim);
  Parallel two(2);
  const ConstRows gradient(dx.data(), kSeq * kBatch, kDim);
  embed_backward(two, tokens(), kSeq, gradient, {}, {alone.data(), kPositions, kDim}, kOffset);
  embed_backward(two, tokens(), kSeq, gradient, {dwte.data(), kVocabulary, kDim}, {both.data(), kPositions, kDim},
                 kOffset);
  EXPECT_TRUE(same_bits(alone, both));
  EXPECT_FALSE(same_bits(alone, Floats(alone.size())));
}

TEST(Embedding, RefusesWhatLiesOutside) {
  Floats wte(kVocabulary * kDim), x(2 * kDim);
  Parallel one;
  const std::vector<std::int32_t> high{0, kVocabulary}, negative{-1, 0}, good{1, 2};
  const ConstRows table(wte.data(), kVocabulary, kDim);
  const Rows out(x.data(), 2, kDim);
  EXPECT_THROW(embed(one, high, 2, table, {}, 0, out), Bug);
  EXPECT_THROW(embed(one, negative, 2, table, {}, 0, out), Bug);
  EXPECT_THROW(embed(one, good, 2, table, table, kVocabulary - 1, out), Bug);
  Floats gradient(wte.size());
  const Rows sums(gradient.data(), kVocabulary, kDim);
  EXPECT_THROW(embed_backward(one, high, 2, out, sums, {}, 0, 1.0f), Bug);
  EXPECT_THROW(embed_backward(one, negative, 2, out, sums, {}, 0, 1.0f), Bug);
  EXPECT_THROW(embed_backward(one, good, 2, out, sums, sums, kVocabulary - 1, 1.0f), Bug);
}

}  // namespace
}  // namespace cleave::kernels
