// PanelStream: whether a panel of a tasklet can be multiplied: it needs B, which came with the first one, and answers
// go back in order. The server sends the panels of a tasklet one after another, so one B is kept at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cleave/comm/message.hpp"

namespace cleave::device {

class PanelStream {
 public:
  enum class Found : std::uint8_t {
    next,   ///< the panel that was to come
    again,  ///< came before, or of a tasklet that is given up: nothing is to be done
    broken  ///< one before it is missing: the tasklet is given up
  };

  /// Requires: a panel of a task that decode() has accepted.
  [[nodiscard]] Found take(const comm::Header& panel);

  /// Panels of `tasklet` that still come are to be passed over.
  void give_up(TaskletId tasklet);

  /// Keeps the frame of a tasklet's first panel, or lends B and its exponents to a later one. Requires: take() has
  /// found it to be the next. Returns what keeps them in memory.
  [[nodiscard]] std::shared_ptr<const comm::Frame> share(comm::Frame& frame, comm::TaskView& view);

 private:
  std::optional<comm::Header> first_;  // header of the first panel of the tasklet whose panels come
  std::int64_t next_row_ = 0;
  TaskletId given_up_;
  std::shared_ptr<const comm::Frame> frame_;  // of the first panel, until the last has come
  comm::TaskView view_;                       // into it
};

}  // namespace cleave::device
