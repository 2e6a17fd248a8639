// The split, the training windows as a pure function of (seed, step), and the validation windows.
#include "cleave/data/batches.hpp"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

namespace cleave::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A corpus whose token i is i, so that a window shows where it was taken.
std::shared_ptr<const Corpus> counting_corpus(std::int64_t size, double val_fraction) {
  TokenArray tokens(size, size);
  for (std::int64_t i = 0; i < size; ++i) tokens.set(i, static_cast<std::int32_t>(i));
  return std::make_shared<const Corpus>(std::move(tokens), val_fraction);
}

TEST(Corpus, SplitsAsTheReferenceRunDid) {
  // tinyshakespeare: 1,115,394 characters; 1742 windows of 64 in the validation part.
  const auto corpus = counting_corpus(1115394, 0.1);
  EXPECT_EQ(corpus->train_tokens(), 1003854);
  EXPECT_EQ(corpus->validation_tokens(), 111540);
  const ValidationBatches batches(corpus, 12, 64);
  EXPECT_EQ(batches.windows(), 1742);
  EXPECT_EQ(batches.count(), 146);
  EXPECT_EQ(batches.batch(145).rows, 2);
}

TEST(Corpus, SaysWhatIsTooShort) {
  EXPECT_EQ(counting_corpus(20, 0.5)->shortage(9), std::nullopt);
  EXPECT_THAT(*counting_corpus(20, 0.5)->shortage(10), HasSubstr("training part of the text has 10 tokens"));
  EXPECT_THAT(*counting_corpus(20, 0.1)->shortage(2), HasSubstr("validation part of the text has 2 tokens"));
  EXPECT_EQ(counting_corpus(20, 0.0)->shortage(19), std::nullopt);
  EXPECT_NE(counting_corpus(0, 0.0)->shortage(1), std::nullopt);
}

TEST(CorpusBatches, WindowsLieInTheTrainingPartAndTargetsAreShiftedByOne) {
  const auto corpus = counting_corpus(100, 0.3);
  const CorpusBatches batches(corpus, 4, 7, 5);
  std::set<std::int64_t> offsets;
  for (std::int64_t step = 0; step < 500; ++step) {
    const Batch batch = batches.batch(step);
    ASSERT_EQ(batch.tokens.size(), 28u);
    for (std::int64_t row = 0; row < 4; ++row) {
      const std::int64_t offset = batches.offset(step, row);
      offsets.insert(offset);
      for (std::int64_t t = 0; t < 7; ++t) {
        EXPECT_EQ(batch.tokens[static_cast<std::size_t>(row * 7 + t)], offset + t);
        EXPECT_EQ(batch.targets[static_cast<std::size_t>(row * 7 + t)], offset + t + 1);
      }
    }
  }
  // 70 training tokens: offsets 0 to 62, the last window ending with token 69. All of them occur.
  EXPECT_EQ(*offsets.begin(), 0);
  EXPECT_EQ(*offsets.rbegin(), 62);
  EXPECT_EQ(offsets.size(), 63u);
}

TEST(CorpusBatches, StepAndSeedDecideAndNothingElse) {
  const auto corpus = counting_corpus(5000, 0.1);
  const CorpusBatches one(corpus, 3, 16, 1), two(corpus, 3, 16, 2);
  const Batch late = one.batch(1000);
  (void)one.batch(3);
  EXPECT_EQ(one.batch(1000), late);
  EXPECT_EQ(CorpusBatches(corpus, 3, 16, 1).batch(1000), late);
  EXPECT_NE(one.batch(1001), late);
  EXPECT_NE(two.batch(1000), late);
}

TEST(CorpusBatches, KnownValues) {
  // Part of the same-bits guarantee: a change here makes old checkpoints resume on other batches.
  const CorpusBatches batches(counting_corpus(1115394, 0.1), 12, 64, 1337);
  EXPECT_EQ(batches.offset(0, 0), 762460);
  EXPECT_EQ(batches.offset(0, 1), 743118);
  EXPECT_EQ(batches.offset(1999, 11), 916004);
}

TEST(CorpusBatches, OneWindowIsEnough) {
  const CorpusBatches batches(counting_corpus(8, 0.0), 2, 7, 0);
  EXPECT_THAT(batches.batch(12).targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THROW(CorpusBatches(counting_corpus(7, 0.0), 2, 7, 0), Bug);
}

TEST(ValidationBatches, CoversEveryWindowOnce) {
  const auto corpus = counting_corpus(50, 0.5);  // validation tokens 25..49: 24 / 5 = 4 windows
  const ValidationBatches batches(corpus, 3, 5);
  EXPECT_EQ(batches.windows(), 4);
  ASSERT_EQ(batches.count(), 2);
  EXPECT_THAT(batches.batch(0).tokens, ElementsAre(25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_EQ(batches.batch(1).rows, 1);
  EXPECT_THAT(batches.batch(1).tokens, ElementsAre(40, 41, 42, 43, 44));
  EXPECT_THAT(batches.batch(1).targets, ElementsAre(41, 42, 43, 44, 45));
  EXPECT_THROW((void)batches.batch(2), Bug);
}

TEST(ValidationBatches, LimitTakesTheFirst) {
  const auto corpus = counting_corpus(50, 0.5);
  EXPECT_EQ(ValidationBatches(corpus, 3, 5, 1).count(), 1);
  EXPECT_EQ(ValidationBatches(corpus, 3, 5, 1).windows(), 3);
  EXPECT_EQ(ValidationBatches(corpus, 3, 5, 2).windows(), 4);
  EXPECT_EQ(ValidationBatches(corpus, 3, 5, 9).windows(), 4);
  EXPECT_EQ(ValidationBatches(corpus, 3, 5, 0).count(), 0);
  EXPECT_EQ(ValidationBatches(counting_corpus(50, 0.0), 3, 5).count(), 0);
}

TEST(FixedBatches, GivesStepByStep) {
  std::vector<std::int32_t> tokens(12), targets(12);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::iota(targets.begin(), targets.end(), 100);
  const FixedBatches batches(3, 2, 2, tokens, targets);
  EXPECT_EQ(batches.steps(), 3);
  EXPECT_THAT(batches.batch(1).tokens, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(batches.batch(2).targets, ElementsAre(108, 109, 110, 111));
  EXPECT_THROW((void)batches.batch(3), InputError);
  EXPECT_THROW((void)batches.batch(-1), InputError);
}

TEST(FixedBatches, RefusesSizesThatDoNotFit) {
  const std::vector<std::int32_t> twelve(12), eleven(11);
  EXPECT_THROW(FixedBatches(3, 2, 3, twelve, twelve), InputError);
  EXPECT_THROW(FixedBatches(3, 2, 2, twelve, eleven), InputError);
  EXPECT_THROW(FixedBatches(0, 2, 2, {}, {}), InputError);
  EXPECT_THROW(FixedBatches(std::int64_t{1} << 32, std::int64_t{1} << 32, 1, {}, {}), InputError);
  EXPECT_THROW(FixedBatches(1, 1, 1, {-1}, {0}), InputError);
  EXPECT_THROW(FixedBatches(1, 1, 1, {0}, {-1}), InputError);
}

TEST(Digest, ChangesWithEveryTokenAndNotWithTheWidthOfTheArray) {
  const auto digest = [](std::int64_t changed, std::int64_t vocab_size) {
    TokenArray tokens(100'000, vocab_size);
    for (std::int64_t i = 0; i < tokens.size(); ++i) tokens.set(i, static_cast<std::int32_t>(i % 200));
    if (changed >= 0) tokens.set(changed, 201);
    return CorpusBatches(std::make_shared<const Corpus>(std::move(tokens), 0.1), 2, 4, 1).digest();
  };
  EXPECT_EQ(digest(-1, 256), digest(-1, 1 << 20));
  std::set<std::uint64_t> all{digest(-1, 256)};
  for (const std::int64_t changed : {0, 65'535, 65'536, 99'999}) EXPECT_TRUE(all.insert(digest(changed, 256)).second);
  const FixedBatches a(1, 1, 2, {1, 2}, {2, 3}), b(1, 1, 2, {1, 2}, {2, 4});
  EXPECT_NE(a.digest(), b.digest());
}

}  // namespace
}  // namespace cleave::data
