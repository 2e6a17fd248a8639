// Lines are whole JSON, in the file as soon as they are appended, and a resumed file has exactly the wanted steps.
#include "cleave/telemetry/json_lines.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::telemetry {
namespace {

namespace fs = std::filesystem;

class JsonLinesFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_ = fs::temp_directory_path() / fmt::format("cleave-json-lines-{}", ::getpid());
  fs::path path_ = folder_ / "metrics.jsonl";
};

TEST(JsonObject, IsJsonWhateverTheValues) {
  EXPECT_EQ(JsonObject().text(), "{}");
  const std::string text = JsonObject()
                               .add("step", 3)
                               .add("big", std::numeric_limits<std::int64_t>::max())
                               .add("loss", 0.1)
                               .add("small", 5e-324)
                               .add("nan", std::nan(""))
                               .add("inf", -std::numeric_limits<double>::infinity())
                               .add("yes", true)
                               .add("text", "a\"b\\c\n\x01")
                               .add("bad", std::string_view("\xff\xfe"))
                               .add_json("list", "[1, 2]")
                               .text();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const nlohmann::json read = nlohmann::json::parse(text);
  EXPECT_EQ(read["step"], 3);
  EXPECT_EQ(read["big"], std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(read["loss"].get<double>(), 0.1);
  EXPECT_EQ(read["small"].get<double>(), 5e-324);
  EXPECT_TRUE(read["nan"].is_null());
  EXPECT_TRUE(read["inf"].is_null());
  EXPECT_EQ(read["yes"], true);
  EXPECT_EQ(read["text"], "a\"b\\c\n\x01");
  EXPECT_EQ(read["bad"], "\ufffd\ufffd");
  EXPECT_EQ(read["list"], (std::vector<int>{1, 2}));
  EXPECT_THROW(JsonObject().add_json("x", "[1,\n2]"), Bug);
}

TEST_F(JsonLinesFile, EveryLineIsThereAtOnce) {
  JsonLines lines = JsonLines::create(path_);
  lines.append(JsonObject().add("step", 1));
  EXPECT_EQ(read_file(path_), "{\"step\": 1}\n");
  lines.append(JsonObject().add("step", 2));
  EXPECT_EQ(read_file(path_), "{\"step\": 1}\n{\"step\": 2}\n");
  JsonLines moved = std::move(lines);
  moved.append(JsonObject());
  EXPECT_EQ(read_file(path_), "{\"step\": 1}\n{\"step\": 2}\n{}\n");
  JsonLines again = JsonLines::create(path_);
  EXPECT_EQ(read_file(path_), "");
}

TEST_F(JsonLinesFile, ResumingDropsLaterStepsAndTornLines) {
  const std::string whole = "{\"step\": 1}\n{\"note\": \"kept\"}\n{\"step\": 2, \"loss\": null}\n";
  std::ofstream(path_) << whole << "{\"step\": 3}\n{\"step\": \"4\"}\nrubbish\n[1]\n\n{\"step\": 1}";
  {
    JsonLines lines = JsonLines::open_resumed(path_, [](std::int64_t step) { return step <= 2; });
    EXPECT_EQ(lines.dropped(), 6);
    EXPECT_EQ(lines.damaged(), 5);
    EXPECT_EQ(read_file(path_), whole);
    lines.append(JsonObject().add("step", 3));
  }
  EXPECT_EQ(read_file(path_), whole + "{\"step\": 3}\n");
  EXPECT_EQ(JsonLines::open_resumed(path_, [](std::int64_t) { return true; }).dropped(), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(JsonLinesFile, ResumingWithoutAFileBeginsOne) {
  JsonLines lines = JsonLines::open_resumed(path_, [](std::int64_t) { return true; });
  lines.append(JsonObject().add("step", 1));
  EXPECT_EQ(read_file(path_), "{\"step\": 1}\n");
}

TEST_F(JsonLinesFile, TroubleWithTheFileIsAnEnvironmentError) {
  EXPECT_THROW((void)JsonLines::create(folder_ / "none" / "x"), EnvironmentError);
  EXPECT_THROW((void)JsonLines::create(folder_), EnvironmentError);
  EXPECT_THROW((void)JsonLines::open_resumed(folder_ / "none" / "x", [](std::int64_t) { return true; }),
               EnvironmentError);
  JsonLines full = JsonLines::create("/dev/full");
  EXPECT_THROW(full.append(JsonObject().add("step", 1)), EnvironmentError);
}

}  // namespace
}  // namespace cleave::telemetry
