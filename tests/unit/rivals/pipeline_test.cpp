// Closed forms of pipelines; shares add up.
#include "pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace cleave::rivals {
namespace {

std::vector<Stage> equal_stages(std::size_t count, double forward_s, double backward_s, std::int64_t in_flight) {
  return std::vector<Stage>(
      count, {.forward_s = forward_s, .backward_s = backward_s, .in_flight = in_flight, .next = {}, .previous = {}});
}

double end_of(const std::vector<StageTimes>& times) {
  double end_s = 0;
  for (const StageTimes& stage : times) end_s = std::max(end_s, stage.end_s);
  return end_s;
}

// (M + S - 1) (forward + backward), for GPipe's order and for 1F1B alike. Source: Huang et al. 2019.
TEST(Pipeline, EqualStagesWithoutTransfers) {
  for (const std::size_t stages : {1, 2, 4, 7}) {
    for (const std::size_t micro_batches : {1, 3, 8, 20}) {
      const std::vector<std::int64_t> sizes(micro_batches, 1);
      const double expected = static_cast<double>(micro_batches + stages - 1) * (0.25 + 0.5);
      const auto gpipe = run_pipeline(equal_stages(stages, 0.25, 0.5, 1000), sizes);
      EXPECT_NEAR(end_of(gpipe), expected, 1e-9) << stages << " stages, " << micro_batches << " micro-batches";
      std::vector<Stage> alternating = equal_stages(stages, 0.25, 0.5, 1);
      for (std::size_t p = 0; p < stages; ++p) alternating[p].in_flight = static_cast<std::int64_t>(stages - p);
      const auto one_f_one_b = run_pipeline(alternating, sizes);
      EXPECT_NEAR(end_of(one_f_one_b), expected, 1e-9);
      for (std::size_t p = 0; p < stages; ++p) EXPECT_LE(one_f_one_b[p].most_in_flight, alternating[p].in_flight);
    }
  }
}

// One micro-batch: every stage and every hop, there and back.
TEST(Pipeline, OneMicroBatchGoesThereAndBack) {
  std::vector<Stage> stages = equal_stages(3, 0.1, 0.2, 1);
  for (std::size_t p = 0; p < 3; ++p) {
    const StageHop hop{
        .send_s = 0.5, .receive_s = 0.3, .send_fixed_s = 0.01, .receive_fixed_s = 0.01, .latency_s = 0.02};
    if (p < 2) stages[p].next = hop;
    if (p > 0) stages[p].previous = hop;
  }
  const std::vector<std::int64_t> sizes{2};
  EXPECT_NEAR(end_of(run_pipeline(stages, sizes)), 3 * 2 * 0.3 + 4 * (2 * 0.5 + 0.01 + 0.02), 1e-9);
}

// Slow links, fast stages: the link that carries M micro-batches each way is the limit, and transfers overlap.
TEST(Pipeline, SlowLinksAreTheLimit) {
  std::vector<Stage> stages = equal_stages(2, 0.01, 0.01, 1000);
  const StageHop hop{.send_s = 1.0, .receive_s = 0.1, .send_fixed_s = 0, .receive_fixed_s = 0, .latency_s = 0};
  stages[0].next = stages[1].previous = hop;
  const std::vector<std::int64_t> sizes(16, 1);
  const auto times = run_pipeline(stages, sizes);
  // The first goes out, 16 follow each other on the uplink, the last comes back.
  EXPECT_NEAR(end_of(times), 0.01 + 16 * 1.0 + 0.02 + 1.0 + 0.01, 1e-9);
  EXPECT_NEAR(times[0].up_s, 16, 1e-9);
  EXPECT_NEAR(times[1].up_s, 16, 1e-9);
  EXPECT_NEAR(times[1].down_s, 1.6, 1e-9);
}

// The same with slow downlinks: the receiver takes one message after another, however quickly they are sent.
TEST(Pipeline, SlowDownlinksAreTheLimit) {
  std::vector<Stage> stages = equal_stages(2, 0.01, 0.01, 1000);
  const StageHop hop{.send_s = 0.1, .receive_s = 1.0, .send_fixed_s = 0, .receive_fixed_s = 0, .latency_s = 0};
  stages[0].next = stages[1].previous = hop;
  const auto times = run_pipeline(stages, std::vector<std::int64_t>(16, 1));
  EXPECT_NEAR(end_of(times), 0.01 + 16 * 1.0 + 0.02 + 1.0 + 0.01, 1e-9);
  EXPECT_NEAR(times[0].down_s, 16, 1e-9);
  EXPECT_NEAR(times[1].down_s, 16, 1e-9);
}

TEST(Pipeline, MemoryForOneInFlightMakesItSequential) {
  const std::vector<std::int64_t> sizes(6, 1);
  EXPECT_NEAR(end_of(run_pipeline(equal_stages(4, 0.25, 0.5, 1), sizes)), 6 * 4 * 0.75, 1e-9);
}

TEST(Shares, AddUpAndFollowTheWeights) {
  EXPECT_EQ(apportion(10, std::vector<double>{1, 1, 2}), (std::vector<std::int64_t>{3, 2, 5}));
  EXPECT_EQ(apportion(2, std::vector<double>{1, 1, 1}), (std::vector<std::int64_t>{1, 1, 0}));
  EXPECT_EQ(apportion(7, std::vector<double>{0, 5, 0}), (std::vector<std::int64_t>{0, 7, 0}));
  EXPECT_EQ(split_batch(7, 3), (std::vector<std::int64_t>{3, 3, 1}));
  EXPECT_EQ(split_batch(6, 3), (std::vector<std::int64_t>{3, 3}));
}

}  // namespace
}  // namespace cleave::rivals
