// Every moment of a step belongs to one phase and one operation.
#include "cleave/server/profile.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace cleave::server {
namespace {

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
Seconds of(const PhaseTimes& times, Phase phase) { return times[static_cast<std::size_t>(phase)]; }
Seconds sum(const PhaseTimes& times) { return std::accumulate(times.begin(), times.end(), Seconds(0)); }

model::StepGraph graph_of(std::vector<std::string> types) {
  model::StepGraph graph;
  for (std::string& type : types) {
    model::Operation& op = graph.operations.emplace_back();
    op.id = OpId(static_cast<std::int64_t>(graph.operations.size()) - 1);
    op.type = std::move(type);
  }
  return graph;
}

TEST(Profile, InnerScopesTakeTheirTimeFromOuterOnes) {
  const model::StepGraph graph = graph_of({"norm", "product", "product"});
  Profile profile;
  profile.enable();
  const SteadyClock clock;
  const Seconds begun = clock.now();
  profile.begin_step(graph);
  {
    const Profile::Scope kernel(profile, Phase::kernel, OpId(0));
    pass(0.002);
  }
  for (const std::int64_t op : {1, 2}) {
    const Profile::Scope place(profile, Phase::place, OpId(op));
    pass(0.001);
    const Profile::Scope verify(profile, Phase::verify);  // of the same operation
    pass(0.003);
  }
  profile.end_step();
  const Seconds wall = clock.now() - begun;

  const PhaseTimes& step = profile.last_step();
  EXPECT_GE(of(step, Phase::kernel), Seconds(0.002));
  EXPECT_GE(of(step, Phase::place), Seconds(0.002));
  EXPECT_GE(of(step, Phase::verify), Seconds(0.006));
  EXPECT_EQ(of(step, Phase::wait), Seconds(0));
  EXPECT_LE(sum(step).value(), wall.value() * (1 + 1e-12));
  EXPECT_GT(of(step, Phase::schedule), Seconds(0));

  ASSERT_EQ(profile.by_type().size(), 3U);
  const PhaseTimes& product = profile.by_type().at("product");
  EXPECT_DOUBLE_EQ(of(product, Phase::verify).value(), of(step, Phase::verify).value());
  EXPECT_DOUBLE_EQ(of(product, Phase::place).value(), of(step, Phase::place).value());
  EXPECT_DOUBLE_EQ(of(profile.by_type().at("norm"), Phase::kernel).value(), of(step, Phase::kernel).value());
  EXPECT_DOUBLE_EQ(of(profile.by_type().at(""), Phase::schedule).value(), of(step, Phase::schedule).value());
}

TEST(Profile, StepsThatDoNotEndAreLeftOut) {
  const model::StepGraph graph = graph_of({"norm"});
  Profile profile;
  profile.enable();
  profile.begin_step(graph);
  { const Profile::Scope kernel(profile, Phase::kernel, OpId(0)); }
  profile.begin_step(graph);
  profile.end_step();
  EXPECT_EQ(profile.steps(), 1);
  EXPECT_FALSE(profile.by_type().contains("norm"));
}

TEST(Profile, OffItTakesNothingDown) {
  const model::StepGraph graph = graph_of({"norm"});
  Profile profile;
  profile.begin_step(graph);
  { const Profile::Scope kernel(profile, Phase::kernel, OpId(0)); }
  profile.end_step();
  EXPECT_EQ(profile.steps(), 0);
  EXPECT_TRUE(profile.by_type().empty());
}

}  // namespace
}  // namespace cleave::server
