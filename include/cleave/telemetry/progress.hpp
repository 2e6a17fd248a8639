// How far the run is: a line or a small panel rewritten in place on a terminal, now and then a plain line anywhere
// else.
//
// The caller formats the lines; Progress decides when and how they are seen. Failing to write is no error: a closed
// pipe must not end a training run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/units.hpp"

namespace cleave::telemetry {

/// How progress is shown.
struct ProgressSettings {
  enum class Mode : std::uint8_t {
    automatic,  ///< live where the output is a terminal that can move its cursor, plain elsewhere
    live,
    plain,
    quiet,  ///< nothing but say()
  };
  Mode mode = Mode::automatic;
  Seconds live_every{0.1};       ///< least time between two rewritings
  Seconds plain_every{10};       ///< least time between two plain lines
  Seconds first_after{0};        ///< nothing is shown before; for work that is usually short
  std::int64_t plain_steps = 1;  ///< least number of steps between two plain lines
  int columns = 0;               ///< width to cut a live line to; 0: ask the terminal
};

/// See the file comment. Not thread-safe.
class Progress {
 public:
  /// Requires: `out` and `clock` outlive the object.
  Progress(std::FILE* out, const Clock& clock, const ProgressSettings& settings = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  ///< as finish()

  /// The state after `step`; shown if it is time. Where lines are rewritten, `panel` is shown in place of `line`, if
  /// it is not empty. Requires: no control characters.
  void update(std::int64_t step, std::string_view line, std::vector<std::string> panel = {});
  /// A line that is always shown, and stays.
  void say(std::string_view line);
  /// Takes the live lines away, so that something else may be printed; the next update() brings them back.
  void clear();
  /// Takes the live lines away for good: nothing of what was updated is shown any more.
  void drop();
  /// Shows the last update, if it was held back, and leaves it standing.
  void finish();

  [[nodiscard]] bool live() const { return mode_ == ProgressSettings::Mode::live; }

 private:
  void draw();
  void erase();
  void flush();

  std::FILE* out_;
  const Clock& clock_;
  ProgressSettings settings_;
  ProgressSettings::Mode mode_;
  std::string last_{};                // the newest line
  std::vector<std::string> panel_{};  // and what is shown for it on a terminal
  bool held_back_ = false;            // it has not been shown
  int standing_ = 0;                  // live lines, with the cursor at the end of the last
  bool shown_once_ = false;
  bool broken_ = false;  // the console took no more
  Seconds made_at_, shown_at_{0};
  std::int64_t step_ = 0;
  std::int64_t shown_step_ = 0;
};

/// The course of `values` in at most `columns` characters, each the mean of its share of them, the highest value
/// tallest: "▇▆▄▃▃▂▂▁", or in ASCII "#*+=-:.". Values that are not finite are left out.
[[nodiscard]] std::string sparkline(std::span<const double> values, int columns, bool ascii = false);

/// Whether the environment promises a terminal that shows UTF-8.
[[nodiscard]] bool shows_utf8();

}  // namespace cleave::telemetry
