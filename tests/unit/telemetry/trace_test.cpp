// The trace is valid JSON in the shape that viewers expect, stays within its bound, and samples evenly.
#include "cleave/telemetry/trace.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::telemetry {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Trace : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }
  json stored(const TraceWriter& trace) {
    trace.store(path_);
    return json::parse(read_file(path_));
  }
  fs::path path_ = fs::temp_directory_path() / fmt::format("cleave-trace-{}.json", ::getpid());
};

TEST_F(Trace, AnyTimeIsANumber) {
  TraceWriter trace;
  const TrackId track = trace.track("phone", "uplink");
  trace.span(track, "slow", Seconds(0), Seconds(1e305));
  trace.span(track, "slower", Seconds(1e305), Seconds(1.5e308));
  const json file = stored(trace);
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "M") { EXPECT_TRUE(event["ts"].is_number()); }
  }
}

TEST_F(Trace, EventsAndNames) {
  TraceWriter trace;
  const TrackId down = trace.track("phone 0", "downlink");
  const TrackId nic = trace.track("server", "out");
  const TrackId up = trace.track("phone 0", "uplink");
  EXPECT_EQ(trace.track("phone 0", "downlink"), down);
  trace.span(down, "fc1 \"x\"", Seconds(1.5), Seconds(2.0), JsonObject().add("bytes", 7));
  trace.instant(up, "lost", Seconds(0.25));
  trace.counter(nic, "queue", Seconds(0), 3.5);
  const json file = stored(trace);
  EXPECT_EQ(file["otherData"], json::parse(R"({"events_recorded": 3, "events_left_out": 0, "sampled_one_in": 1})"));
  EXPECT_EQ(file["traceEvents"], json::parse(R"([
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "phone 0"}},
    {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 1}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "downlink"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
    {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "server"}},
    {"ph": "M", "name": "process_sort_index", "pid": 2, "args": {"sort_index": 2}},
    {"ph": "M", "name": "thread_name", "pid": 2, "tid": 2, "args": {"name": "out"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 2, "tid": 2, "args": {"sort_index": 2}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "args": {"name": "uplink"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 3, "args": {"sort_index": 3}},
    {"ph": "X", "name": "fc1 \"x\"", "pid": 1, "tid": 1, "ts": 1500000.0, "dur": 500000.0, "args": {"bytes": 7}},
    {"ph": "i", "name": "lost", "pid": 1, "tid": 3, "ts": 250000.0, "s": "t", "args": {}},
    {"ph": "C", "name": "queue", "pid": 2, "tid": 2, "ts": 0.0, "args": {"value": 3.5}}])"));
}

// A viewer adds start and length: were the sum above the next start by one rounding, the spans would seem to nest.
TEST_F(Trace, SpansThatFollowEachOtherDoNotOverlapInAnyViewer) {
  TraceWriter trace;
  const TrackId track = trace.track("a", "b");
  for (int i = 0; i < 1000; ++i) trace.span(track, "x", Seconds(0.0224511907 * i), Seconds(0.0224511907 * (i + 1)));
  double end = 0;
  const json whole = stored(trace);
  for (const json& event : whole["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["ts"].get<double>(), end);
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
}

TEST_F(Trace, AnEmptyTraceIsValid) { EXPECT_TRUE(stored(TraceWriter())["traceEvents"].empty()); }

TEST_F(Trace, SamplesEvenlyOverTimeAndTracks) {
  TraceWriter trace(1000);
  constexpr int kTracks = 8, kEvents = 100000;
  std::vector<TrackId> tracks;
  for (int i = 0; i < kTracks; ++i) tracks.push_back(trace.track(fmt::format("device {}", i), "processor"));
  for (int i = 0; i < kEvents; ++i)
    trace.span(tracks[static_cast<std::size_t>(i % kTracks)], "x", Seconds(i), Seconds(i + 1));
  EXPECT_EQ(trace.recorded(), kEvents);
  const json file = stored(trace);
  std::map<int, int> per_track, per_tenth;
  int kept = 0;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++kept;
    ++per_track[event["tid"].get<int>()];
    ++per_tenth[static_cast<int>(event["ts"].get<double>() / 1e6 / (kEvents / 10))];
  }
  EXPECT_LE(kept, 1000);
  EXPECT_GE(kept, 400);
  EXPECT_EQ(trace.left_out(), kEvents - kept);
  EXPECT_EQ(file["otherData"]["events_left_out"], kEvents - kept);
  EXPECT_NEAR(kept * file["otherData"]["sampled_one_in"].get<double>(), kEvents, 0.15 * kEvents);
  ASSERT_EQ(per_track.size(), static_cast<std::size_t>(kTracks));
  ASSERT_EQ(per_tenth.size(), 10U);
  for (const auto& [track, count] : per_track) EXPECT_NEAR(count, kept / 8.0, kept / 16.0) << track;
  for (const auto& [tenth, count] : per_tenth) EXPECT_NEAR(count, kept / 10.0, kept / 20.0) << tenth;
}

TEST_F(Trace, RefusesWhatNoViewerCanDraw) {
  TraceWriter trace;
  const TrackId track = trace.track("a", "b");
  EXPECT_THROW(trace.span(track, "x", Seconds(2), Seconds(1)), Bug);
  EXPECT_THROW(trace.instant(track, "x", Seconds(std::numeric_limits<double>::infinity())), Bug);
  EXPECT_THROW(trace.instant(TrackId(7), "x", Seconds(0)), Bug);
  EXPECT_THROW(trace.store("/nowhere/trace.json"), EnvironmentError);
  EXPECT_EQ(trace.recorded(), 0);
}

}  // namespace
}  // namespace cleave::telemetry
