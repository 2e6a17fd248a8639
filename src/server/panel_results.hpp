// PanelResults: puts the rows of a tasklet's result together as its panels are answered, so that whoever looks at
// results sees whole blocks only.
#pragma once

#include <cstdint>

#include "cleave/comm/message.hpp"

namespace cleave::server {

class PanelResults {
 public:
  enum class Taken : std::uint8_t {
    more,    ///< others are still to come
    whole,   ///< that was the last one
    again,   ///< its rows are here
    missing  ///< one before it did not come
  };

  /// `panel`: header of any panel of the task that was sent. Errors: std::bad_alloc.
  explicit PanelResults(const comm::Header& panel);

  /// Takes the rows of a result. Requires: decode() has accepted it. A result that is cut from another product than the
  /// task says is `missing`.
  Taken take(const comm::Frame& frame, const comm::Header& header);

  /// The whole result, timed as its parts were together. Requires: take() has said `whole`. Only views may be taken of
  /// it: it has no checksum.
  [[nodiscard]] comm::Frame frame();

 private:
  comm::ResultDraft whole_;
  std::int64_t next_row_ = 0;
};

}  // namespace cleave::server
