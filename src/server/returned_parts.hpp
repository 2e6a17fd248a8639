// ReturnedParts: the state of a tasklet that is sent in parts: how far it was sent, how far the device has come, and
// its result. The result is put together as its parts are answered, so that other code only ever sees whole
// blocks.
#pragma once

#include <cstdint>

#include "cleave/comm/message.hpp"

namespace cleave::server {

class ReturnedParts {
 public:
  enum class Taken : std::uint8_t {
    more,     ///< others are still to come
    whole,    ///< that was the last one
    again,    ///< it was here before
    missing,  ///< one before it did not come
    unasked   ///< it answers what the device was not sent yet
  };

  /// `part`: header of the first part of the task. Errors: std::bad_alloc.
  explicit ReturnedParts(const comm::Header& part);

  /// The next part is sent.
  void sent(const comm::MessagePart& part);

  /// Whether the device has as many parts as it has room for: of K blocks the one that it multiplies and the one that
  /// travels. Of rows and pairs it may have any number: they leave no sums that later ones need.
  [[nodiscard]] bool has_enough() const;

  /// Takes part of a result. Requires: decode() has accepted it. A result that is cut from another block than the task
  /// says is `missing`.
  Taken take(const comm::Frame& frame, const comm::Header& header);

  /// The whole result, timed as its parts were together. Requires: take() has said `whole`. Only views may be taken of
  /// it: it has no checksum.
  [[nodiscard]] comm::Frame frame();

 private:
  // Of sums over tokens, which come in 64 bits where their type does not hold them.
  [[nodiscard]] bool may_be_wide() const;
  Taken take_other_type(const comm::ResultView& rows, const comm::MessagePart& part);
  Taken taken(const comm::Header& header, const comm::MessagePart& part);

  comm::PartOf of_;
  std::int64_t units_, sent_ = 0;  // of what it is divided into: all, and how many were sent
  std::int64_t multiplied_ = 0;    // K blocks that the device has said it has done with
  std::int64_t in_flight_ = 0;     // parts between the two
  std::int64_t cells_, next_ = 0;  // rows or pairs of the result: all, and how many are there
  comm::ResultDraft whole_;
};

}  // namespace cleave::server
