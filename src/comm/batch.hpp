// Batch: small frames, and notices of large ones, that share a message.
//
// Layout: for each, a word with its bytes and, in the highest bit, whether it is a notice; then its bytes, filled up to
// a whole number of words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "cleave/comm/frame.hpp"

namespace cleave::comm {

/// See the file comment.
class Batch {
 public:
  /// Messages of batches have at most so many bytes.
  static constexpr std::int64_t kMost = std::int64_t{64} << 10;

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t count() const { return entries_.size(); }
  [[nodiscard]] bool has_room_for(const Frame& frame) const { return bytes_ + bytes_of(frame) <= kMost; }
  /// Requires: room for it.
  void add(Frame frame, bool notice);
  /// All of them in one message; the batch is empty then.
  [[nodiscard]] Frame take();
  /// The frame as it is, and whether it is a notice. Requires: there is one.
  [[nodiscard]] std::pair<Frame, bool> take_only();

 private:
  struct Entry {
    Frame frame;
    bool notice;
  };
  static std::int64_t bytes_of(const Frame& frame);

  std::vector<Entry> entries_;
  std::int64_t bytes_ = 0;
};

/// Calls visit(frame, notice) for each frame of a batch's message, in order. Where the message is not what take()
/// makes, an empty frame, as malformed as a frame can be, stands for the rest of it.
void for_each_of_batch(std::span<const std::byte> message, const std::function<void(Frame, bool)>& visit);

}  // namespace cleave::comm
