// Recording with bounded memory, and the writing of trace.json.
#include "cleave/telemetry/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::telemetry {

namespace fs = std::filesystem;

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): spreads consecutive numbers evenly.
std::uint64_t mix(std::uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15U);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

/// Times are put on a grid of 2^-6 us (16 ns): numbers that binary fractions hold exactly, so that where a viewer adds
/// a start and a length, the end of one span is the start of the next and never lies behind it.
constexpr double kGrid = 1.0 / 64.0;
/// Longer times are no numbers any more once they are microseconds, and JSON has no infinity.
constexpr double kLongest = 1e200;
double on_grid(double seconds) { return std::round(std::min(seconds, kLongest) * 1e6 / kGrid) * kGrid; }
std::string microseconds(double on_grid) { return fmt::format("{}", on_grid); }

}  // namespace

TraceWriter::TraceWriter(std::int64_t max_events) : max_events_(max_events) {
  CLEAVE_ASSERT(max_events >= 2, "a trace of {} events", max_events);
}

TrackId TraceWriter::track(std::string_view process, std::string_view thread) {
  const auto [found, fresh] = track_of_.try_emplace({std::string(process), std::string(thread)});
  if (fresh) {
    const auto next_process = static_cast<std::int64_t>(processes_.size()) + 1;
    const std::int64_t id = processes_.try_emplace(std::string(process), next_process).first->second;
    found->second = TrackId(static_cast<std::int64_t>(tracks_.size()));
    tracks_.push_back({id, found->second.value + 1, std::string(process), std::string(thread)});
  }
  return found->second;
}

void TraceWriter::span(TrackId track, std::string_view name, Seconds start, Seconds end, const JsonObject& details) {
  CLEAVE_ASSERT(start <= end, "span {} ends {} s before it starts", name, (start - end).value());
  record('X', track, name, start, end - start, details.text());
}

void TraceWriter::instant(TrackId track, std::string_view name, Seconds at, const JsonObject& details) {
  record('i', track, name, at, Seconds(0), details.text());
}

void TraceWriter::counter(TrackId track, std::string_view name, Seconds at, double value) {
  record('C', track, name, at, Seconds(0), JsonObject().add("value", value).text());
}

bool TraceWriter::sampled(std::int64_t number) const {
  return (mix(static_cast<std::uint64_t>(number)) & ((std::uint64_t{1} << halvings_) - 1)) == 0;
}

void TraceWriter::record(char phase, TrackId track, std::string_view name, Seconds start, Seconds length,
                         std::string details) {
  CLEAVE_ASSERT(track.valid() && track.value < static_cast<std::int64_t>(tracks_.size()), "track {}", track.value);
  CLEAVE_ASSERT(std::isfinite(start.value()) && std::isfinite(length.value()), "event {} at {} s for {} s", name,
                start.value(), length.value());
  const std::int64_t number = recorded_++;
  if (!sampled(number)) return;
  auto known = name_of_.find(name);
  if (known == name_of_.end()) {
    known = name_of_.emplace(std::string(name), static_cast<std::int64_t>(names_.size())).first;
    names_.push_back(json_string(name));
  }
  events_.push_back({phase, track, known->second, number, start.value(), length.value(), std::move(details)});
  while (static_cast<std::int64_t>(events_.size()) > max_events_) {
    ++halvings_;
    std::erase_if(events_, [this](const Event& event) { return !sampled(event.number); });
  }
}

void TraceWriter::write(std::FILE* out) const {
  const auto put = [out](const std::string& text) { std::fwrite(text.data(), 1, text.size(), out); };
  put(fmt::format("{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {},\n\"traceEvents\": [\n",
                  JsonObject()
                      .add("events_recorded", recorded_)
                      .add("events_left_out", left_out())
                      .add("sampled_one_in", std::int64_t{1} << halvings_)
                      .text()));
  std::string_view comma;
  const auto put_event = [&](const std::string& text) {
    put(fmt::format("{}{}", comma, text));
    comma = ",\n";
  };
  std::int64_t named = 0;  // processes have ascending ids in order of first use
  for (const Track& track : tracks_) {
    if (track.process > named) {
      named = track.process;
      put_event(fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": {}}}}})",
                            track.process, json_string(track.process_name)));
      put_event(fmt::format(R"({{"ph": "M", "name": "process_sort_index", "pid": {0}, "args": {{"sort_index": {0}}}}})",
                            track.process));
    }
    put_event(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
                          track.process, track.thread, json_string(track.thread_name)));
    put_event(
        fmt::format(R"({{"ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, "args": {{"sort_index": {}}}}})",
                    track.process, track.thread, track.thread));
  }
  for (const Event& event : events_) {
    const Track& track = tracks_[static_cast<std::size_t>(event.track.value)];
    const double start = on_grid(event.start_s), end = on_grid(event.start_s + event.length_s);
    // What is shorter than the grid is an instant: viewers take spans without length for ends without beginnings.
    const char phase = event.phase == 'X' && end <= start ? 'i' : event.phase;
    const std::string more = phase == 'X'   ? R"(, "dur": )" + microseconds(end - start)
                             : phase == 'i' ? R"(, "s": "t")"
                                            : "";
    put_event(fmt::format(R"({{"ph": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}{}, "args": {}}})", phase,
                          names_[static_cast<std::size_t>(event.name)], track.process, track.thread,
                          microseconds(start), more, event.details));
  }
  put("\n]}\n");
}

void TraceWriter::store(const fs::path& path) const {
  replace_file(path, [&](const fs::path& temporary) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(temporary.c_str(), "wb"), &std::fclose);
    if (!out) throw EnvironmentError("open", temporary.string(), std::strerror(errno));
    write(out.get());
    const bool failed = std::ferror(out.get()) != 0;
    if (std::fclose(out.release()) != 0 || failed) {
      throw EnvironmentError("write", temporary.string(), std::strerror(errno));
    }
  });
}

}  // namespace cleave::telemetry
