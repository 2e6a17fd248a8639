// Panels: the steps in which a stream's data come down, are computed, and go up.
//
// A panel is one message down, the work on it, and one message up; any of them may be missing. The time model knows
// nothing of a stream but the bytes and FLOP of its panels; plan/panels.hpp gives those of a tasklet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/base/resident.hpp"
#include "cleave/base/units.hpp"
#include "cleave/fleet/profile.hpp"

namespace cleave::timing {

/// Bytes of the header that comm's codec puts before every payload.
inline constexpr Bytes kMessageHeader{128};

/// Bytes of a message with this payload, header included; 0 where the payload is empty, since nothing is sent then.
[[nodiscard]] constexpr Bytes message_bytes(std::int64_t payload) {
  return payload > 0 ? Bytes(payload) + kMessageHeader : Bytes(0);
}

/// One step of a stream: what comes down, is computed, and goes up. Either byte count may be zero (no message).
struct Panel {
  Bytes down;
  Flops flops;
  Bytes up;
};

/// A number of equal panels. Bytes include headers.
struct PanelRun {
  Panel each;
  std::int64_t panels = 0;
  Bytes last_up;  ///< more bytes that go up with the last panel
  [[nodiscard]] Bytes down() const { return each.down * panels; }
  [[nodiscard]] Flops flops() const { return each.flops * static_cast<double>(panels); }
  [[nodiscard]] Bytes up() const { return each.up * panels + last_up; }
};

/// The lengths of `panels` nearly equal runs of `total` items, one after another: run i is [total * i / panels,
/// total * (i + 1) / panels). No division a run. Requires: panels >= 1. Source: Bresenham 1965, "Algorithm for computer
/// control of a digital plotter".
class Chunks {
 public:
  Chunks() = default;
  Chunks(std::int64_t total, std::int64_t panels) : least_(total / panels), over_(total % panels), panels_(panels) {}
  /// Length of the next run.
  std::int64_t next() {
    rest_ += over_;
    const std::int64_t more = rest_ >= panels_ ? 1 : 0;
    rest_ -= more * panels_;
    return least_ + more;
  }
  [[nodiscard]] std::int64_t total() const { return least_ * panels_ + over_; }
  /// Length of the last run.
  [[nodiscard]] std::int64_t last() const { return least_ + (over_ > 0 ? 1 : 0); }

 private:
  std::int64_t least_ = 0, over_ = 0, panels_ = 1, rest_ = 0;
};

/// The panels of a stream in the order in which they travel. next() computes them one by one, since a simulated fleet
/// has too many streams to store their panels. Bytes of a panel include its headers.
class PanelSequence {
 public:
  /// Payload and FLOP of one unit: of a row, a column, a pair, a chunk of tokens.
  struct Unit {
    std::int64_t down = 0;  ///< bytes
    std::int64_t up = 0;    ///< bytes
    double flops = 0;
  };

  /// No panels.
  PanelSequence() = default;

  /// `units` units in `panels` nearly equal runs; a panel has the bytes and FLOP of its units. `first_down`: more bytes
  /// that come with the first panel. Requires: panels >= 1.
  ///
  /// Example: a stage's chunk of 128 tokens of width 5120 in fp16 as one panel is
  /// runs(128, 1, {5120 * 2, 5120 * 2, flops_of_a_token}).
  [[nodiscard]] static PanelSequence runs(std::int64_t units, std::int64_t panels, Unit unit,
                                          std::int64_t first_down = 0);

  /// A block whose rows and columns arrive together. After each panel the rectangle of the rows and columns that are
  /// there is computed; what the panel adds to it goes up. `strip_down`: bytes of a row or column. `element`: `up` and
  /// `flops` of an element of the result. Requires: panels >= 1.
  [[nodiscard]] static PanelSequence wavefront(std::int64_t rows, std::int64_t columns, std::int64_t panels,
                                               std::int64_t strip_down, Unit element);

  /// A block whose result stays resident while `depth` streams by in whole K blocks; then the result leaves. `down`:
  /// bytes of all operands. `elements`: of the result. `element`: bytes `up` of an element, and its `flops` at a depth
  /// of 1. Requires: panels >= 1.
  [[nodiscard]] static PanelSequence result_resident(std::int64_t depth, std::int64_t elements, std::int64_t panels,
                                                     std::int64_t down, Unit element);

  /// The panels of a run. Requires: run.panels >= 1.
  [[nodiscard]] static PanelSequence alike(const PanelRun& run);

  /// Replaces all results by one message with this payload, which goes up with the last panel. Requires: made() is 0.
  void answer_with(std::int64_t payload);

  /// Number of panels.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Number of panels that next() has returned.
  [[nodiscard]] std::int64_t made() const { return made_; }
  /// The next one. Requires: made() < size().
  Panel next() {
    Panel panel = next_whole();
    if (answer_ >= 0) panel.up = message_bytes(made_ == size_ ? answer_ : 0);
    return panel;
  }
  /// The last panel. Its `down` is not computed. Its `flops` is zero where the result leaves after all operands came.
  [[nodiscard]] Panel last() const;

 private:
  enum class Form : std::uint8_t { runs, wavefront, result_resident, alike };

  Panel next_whole();
  [[nodiscard]] Panel last_whole() const;

  Form form_ = Form::runs;
  std::int64_t size_ = 0, made_ = 0;
  Chunks units_, others_, results_;      // wavefront: rows, columns; result_resident: bytes down, K blocks, elements
  std::int64_t down_ = 0, up_ = 0;       // bytes of a unit or strip, of a unit or element of the result
  std::int64_t extra_ = 0;               // runs: bytes that come with the first one; alike: that go up with the last
  std::int64_t answer_ = -1;             // bytes, in place of results
  double flops_ = 0;                     // of a unit, of an element of the result, of all elements at a depth of 1
  std::int64_t rows_ = 0, columns_ = 0;  // wavefront: here so far
  // result_resident: depth of the box, K blocks so far, panels that bring some
  std::int64_t depth_ = 0, reached_ = 0, downs_ = 0;
};

inline Panel PanelSequence::next_whole() {
  const bool first = made_ == 0;
  ++made_;
  switch (form_) {
    case Form::runs: {
      const std::int64_t units = units_.next();
      return {message_bytes(units * down_ + (first ? extra_ : 0)), Flops(static_cast<double>(units) * flops_),
              message_bytes(units * up_)};
    }
    case Form::wavefront: {
      const std::int64_t rows = units_.next(), columns = others_.next();
      const std::int64_t area = (rows_ + rows) * (columns_ + columns) - rows_ * columns_;
      rows_ += rows;
      columns_ += columns;
      return {message_bytes((rows + columns) * down_), Flops(static_cast<double>(area) * flops_),
              message_bytes(area * up_)};
    }
    case Form::alike: return {Bytes(down_), Flops(flops_), Bytes(up_ + (made_ == size_ ? extra_ : 0))};
    case Form::result_resident: break;
  }
  const Bytes up = message_bytes(made_ >= downs_ ? results_.next() * up_ : 0);
  if (made_ > downs_) return {Bytes(0), Flops(0), up};
  // A K block is multiplied when all of it is there.
  const std::int64_t before = std::min(depth_, kBlockK * reached_);
  reached_ += others_.next();
  const std::int64_t depth = std::min(depth_, kBlockK * reached_) - before;
  return {message_bytes(units_.next()), Flops(static_cast<double>(depth) * flops_), up};
}

/// How long a device that does nothing else still needs for a stream. The server's interface serves the longest tail
/// first, because that device would finish last. Source: Jackson 1955, "Scheduling a production line to minimize
/// maximum tardiness".
struct Tail {
  Seconds down;  ///< from when a panel begins to come down until the last byte is at the server
  Seconds up;    ///< time of the uplink for the results of a panel and of those after it
};

/// Sets tails[i] to the tail at panel i:
///   up_i = up bytes_i / uplink + up_(i+1)
///   down_i = down bytes_i / downlink + max(down_(i+1), 2 latency + flops_i / compute + up_i).
void tails_of(std::span<const Panel> panels, const fleet::DeviceProfile& device, std::vector<Tail>& tails);

}  // namespace cleave::timing
