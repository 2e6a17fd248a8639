// A timeline in Chrome's trace-event format (trace.json), for Perfetto and chrome://tracing.
//
// Tracks are (process, thread) names: a device is a process, its downlink, processor and uplink are its threads. Spans
// may be recorded in any order. The number of events is bounded: when the bound is met, half of what is held is let go
// and from then on half as much is taken, each event by a hash of its number, so that what remains is spread evenly
// over the run and over the tracks. The file states how many were left out. Not safe to share between threads.
// Source: Trace Event Format, "JSON Object Format", events X, i, C and M.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/telemetry/json_lines.hpp"

namespace cleave::telemetry {

/// A track of a TraceWriter.
using TrackId = Id<struct TrackIdTag>;

/// See the file comment.
class TraceWriter {
 public:
  /// Writes nothing until store(). Requires: max_events >= 2.
  explicit TraceWriter(std::int64_t max_events = 200'000);

  /// The track of these names, made on first use; shown in order of first use.
  [[nodiscard]] TrackId track(std::string_view process, std::string_view thread);

  /// Something that took from `start` to `end`. Requires: both finite, start <= end.
  void span(TrackId track, std::string_view name, Seconds start, Seconds end, const JsonObject& details = {});
  /// Something that happened at `at`.
  void instant(TrackId track, std::string_view name, Seconds at, const JsonObject& details = {});
  /// The value of a quantity from `at` on, drawn as a curve beside the track's process.
  void counter(TrackId track, std::string_view name, Seconds at, double value);

  [[nodiscard]] std::int64_t recorded() const { return recorded_; }  ///< events handed in
  [[nodiscard]] std::int64_t left_out() const { return recorded_ - static_cast<std::int64_t>(events_.size()); }

  /// Writes all as one JSON file, replacing what is there as one. May be called again as the run goes on.
  /// Errors: EnvironmentError.
  void store(const std::filesystem::path& path) const;

 private:
  struct Event {
    char phase;  // X, i or C
    TrackId track;
    std::int64_t name;
    std::int64_t number;  // counts what was handed in
    double start_s;
    double length_s;
    std::string details;
  };
  struct Track {
    std::int64_t process;
    std::int64_t thread;
    std::string process_name;
    std::string thread_name;
  };

  void record(char phase, TrackId track, std::string_view name, Seconds start, Seconds length, std::string details);
  [[nodiscard]] bool sampled(std::int64_t number) const;
  void write(std::FILE* out) const;

  std::int64_t max_events_;
  std::int64_t recorded_ = 0;
  int halvings_ = 0;  // one event in 2^halvings_ is kept
  std::vector<Event> events_{};
  std::vector<Track> tracks_{};
  std::map<std::pair<std::string, std::string>, TrackId> track_of_{};
  std::map<std::string, std::int64_t, std::less<>> processes_{};
  std::vector<std::string> names_{};  // JSON strings
  std::map<std::string, std::int64_t, std::less<>> name_of_{};
};

}  // namespace cleave::telemetry
