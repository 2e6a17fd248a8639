// What ranks say of themselves goes into a fragment of an input: a rank may say anything.
#include "commands/rank_links.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "cleave/comm/loopback.hpp"

namespace cleave::app {
namespace {

TEST(RankLinks, NamesOfHostsAreWordsInOneLine) {
  comm::LoopbackHub hub(2);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::jthread rank([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] {
    answer_until_told(*endpoint, "there\", count: 1000}\nserver: {compute: 1 FLOP/s}\n# \\" + std::string(1000, 'x'));
  });
  const RankSurvey survey = survey_ranks(*server, describe_this_host("here"));
  ASSERT_EQ(survey.hosts.size(), 2U);
  const std::string& name = survey.hosts[1].name;
  EXPECT_TRUE(name.starts_with("there?, count: 1000}?server: {compute: 1 FLOP/s}?# ?xxx")) << name;
  EXPECT_LE(name.size(), 256U);
  EXPECT_EQ(survey.links.at(0).host, name);
}

}  // namespace
}  // namespace cleave::app
