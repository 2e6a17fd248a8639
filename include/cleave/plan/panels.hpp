// The panels of a tasklet: in which steps its operands come down, are multiplied, and its results go up.
#pragma once

#include <algorithm>
#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// Bytes of framing that every message pays: what comm's codec puts before the payload.
inline constexpr Bytes kMessageHeader{128};

/// One step of a tasklet's stream: what comes down, is computed, and goes up. Either byte count may be zero (no
/// message).
struct Panel {
  Bytes down;
  Flops flops;
  Bytes up;
};

/// Panels that are alike, of tasklets that are no box of an operation: what comes down, is computed and goes up of
/// each, and what goes up with the last one besides. Bytes include headers.
struct PanelRun {
  Panel each;
  std::int64_t panels = 0;
  Bytes last_up;
  [[nodiscard]] Bytes down() const { return each.down * panels; }
  [[nodiscard]] Flops flops() const { return each.flops * static_cast<double>(panels); }
  [[nodiscard]] Bytes up() const { return each.up * panels + last_up; }
};

/// The runs of `total` things cut into `panels` runs, i from total * i / panels to total * (i + 1) / panels, one after
/// the other without a division for each. (Bresenham 1965, "Algorithm for computer control of a digital plotter".)
class Chunks {
 public:
  Chunks() = default;
  Chunks(std::int64_t total, std::int64_t panels) : least_(total / panels), over_(total % panels), panels_(panels) {}
  std::int64_t next() {
    rest_ += over_;
    const std::int64_t more = rest_ >= panels_ ? 1 : 0;
    rest_ -= more * panels_;
    return least_ + more;
  }
  [[nodiscard]] std::int64_t total() const { return least_ * panels_ + over_; }
  /// The last run of all.
  [[nodiscard]] std::int64_t last() const { return least_ + (over_ > 0 ? 1 : 0); }

 private:
  std::int64_t least_ = 0, over_ = 0, panels_ = 1, rest_ = 0;
};

/// The panels of a tasklet in the order in which they travel, made when asked for: a simulated fleet has millions of
/// tasklets, and memory would be the limit. Bytes include headers; their sums are the tasklet's bytes_down and
/// bytes_up.
class PanelSequence {
 public:
  PanelSequence() = default;
  /// Requires: tasklet.panels >= 1.
  PanelSequence(const Work& work, const TaskletPlan& tasklet);
  /// Requires: run.panels >= 1.
  explicit PanelSequence(const PanelRun& run)
      : form_(Form::alike),
        size_(run.panels),
        down_(run.each.down.value()),
        up_(run.each.up.value()),
        first_down_(run.last_up.value()),
        flops_(run.each.flops.value()) {}

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// How many were asked for.
  [[nodiscard]] std::int64_t made() const { return made_; }
  /// The next one. Requires: made() < size().
  Panel next();
  /// The last one, of which `down` is not known, and `flops` is zero where the result leaves after the operands came.
  [[nodiscard]] Panel last() const;

 private:
  enum class Form : std::uint8_t {
    runs,             // each as much of everything as it has units: rows, columns, pairs, instances
    wavefront,        // rows and columns here so far complete a square from the corner; each panel adds its rim
    result_resident,  // depth streams by, then the result leaves
    alike             // a PanelRun; first_down_ is what goes up with the last one
  };
  static Bytes message(std::int64_t payload) { return payload > 0 ? Bytes(payload) + kMessageHeader : Bytes(0); }

  Form form_ = Form::runs;
  std::int64_t size_ = 0, made_ = 0;
  Chunks units_, others_, results_;      // wavefront: rows, columns; result_resident: bytes down, K blocks, elements
  std::int64_t down_ = 0, up_ = 0;       // bytes of a unit or strip, of a unit or element of the result
  std::int64_t first_down_ = 0;          // runs: bytes that come with the first one
  double flops_ = 0;                     // of a unit, of an element of the result, of all elements at a depth of 1
  std::int64_t rows_ = 0, columns_ = 0;  // wavefront: here so far
  // result_resident: depth of the box, K blocks so far, panels that bring some
  std::int64_t depth_ = 0, reached_ = 0, downs_ = 0;
};

inline Panel PanelSequence::next() {
  const bool first = made_ == 0;
  ++made_;
  switch (form_) {
    case Form::runs: {
      const std::int64_t units = units_.next();
      return {message(units * down_ + (first ? first_down_ : 0)), Flops(static_cast<double>(units) * flops_),
              message(units * up_)};
    }
    case Form::wavefront: {
      const std::int64_t rows = units_.next(), columns = others_.next();
      const std::int64_t area = (rows_ + rows) * (columns_ + columns) - rows_ * columns_;
      rows_ += rows;
      columns_ += columns;
      return {message((rows + columns) * down_), Flops(static_cast<double>(area) * flops_), message(area * up_)};
    }
    case Form::alike: return {Bytes(down_), Flops(flops_), Bytes(up_ + (made_ == size_ ? first_down_ : 0))};
    case Form::result_resident: break;
  }
  const Bytes up = message(made_ >= downs_ ? results_.next() * up_ : 0);
  if (made_ > downs_) return {Bytes(0), Flops(0), up};
  // A K block is multiplied when all of it is there.
  const std::int64_t before = std::min(depth_, kBlockK * reached_);
  reached_ += others_.next();
  const std::int64_t depth = std::min(depth_, kBlockK * reached_) - before;
  return {message(units_.next()), Flops(static_cast<double>(depth) * flops_), up};
}

[[nodiscard]] std::vector<Panel> panels_of(const Work& work, const TaskletPlan& tasklet);
/// The same in place of what is in `panels`, whose memory is used again.
void panels_of(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels);
/// All panels that `sequence` still has to make.
void panels_of(PanelSequence sequence, std::vector<Panel>& panels);

}  // namespace cleave::plan
