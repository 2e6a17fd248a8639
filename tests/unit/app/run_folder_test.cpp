// What a run writes while it goes on is JSON whatever its hosts are called: names of hosts are bytes.
#include "output/run_folder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(top_); }
  [[nodiscard]] nlohmann::json read(const std::string& name) const {
    std::ifstream in(top_ / "run" / name);
    return nlohmann::json::parse(in);
  }
  fs::path top_ = fs::temp_directory_path() / ("cleave-run-folder-" + std::to_string(::getpid()));
};

TEST_F(RunFolderTest, HostsMayBeCalledAnything) {
  RunFolder folder = RunFolder::create(top_ / "run");
  folder.store_ranks({{.rank = 0, .pid = 1, .host = {}, .devices = {}},
                      {.rank = 1, .pid = 2, .host = "n\xff\xfe", .devices = {DeviceId(0)}}});
  server::StepResult result;
  result.dilation = 1.25;
  result.dilation_by_host = {{"n\xff\xfe", 1.2}, {"plain", 1.05}};
  folder.append(1, 64, result, std::nullopt);

  const nlohmann::json ranks = read("ranks.json");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].at("rank"), 1);
  EXPECT_TRUE(ranks[1].at("host").get<std::string>().starts_with("n"));
  const nlohmann::json hosts = read("metrics.jsonl").at("dilation_by_host");
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts.at("plain"), 1.05);
}

}  // namespace
}  // namespace cleave::app
