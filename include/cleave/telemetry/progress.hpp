// How far the run is: one line rewritten in place on a terminal, now and then a plain line anywhere else.
//
// The caller formats the line; Progress decides when and how it is seen. Failing to write is no error: a closed pipe
// must not end a training run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "cleave/base/clock.hpp"
#include "cleave/base/units.hpp"

namespace cleave::telemetry {

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
  std::int64_t plain_steps = 1;  ///< least number of steps between two plain lines
  int columns = 0;               ///< width to cut a live line to; 0: ask the terminal
};

class Progress {
 public:
  /// `out` and `clock` must outlive the object.
  Progress(std::FILE* out, const Clock& clock, const ProgressSettings& settings = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  ///< as finish()

  /// The state after `step`; shown if it is time. Requires: one line, no control characters.
  void update(std::int64_t step, std::string_view line);
  /// A line that is always shown, and stays.
  void say(std::string_view line);
  /// Takes the live line away, so that something else may be printed; the next update() brings it back.
  void clear();
  /// Shows the last update, if it was held back, and leaves it standing.
  void finish();

  [[nodiscard]] bool live() const { return mode_ == ProgressSettings::Mode::live; }

 private:
  void draw();

  std::FILE* out_;
  const Clock& clock_;
  ProgressSettings settings_;
  ProgressSettings::Mode mode_;
  std::string last_{};      // the newest line
  bool held_back_ = false;  // it has not been shown
  bool standing_ = false;   // a live line stands at the cursor
  bool shown_once_ = false;
  Seconds shown_at_{0};
  std::int64_t step_ = 0;
  std::int64_t shown_step_ = 0;
};

}  // namespace cleave::telemetry
