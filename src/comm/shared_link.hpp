// SharedLink: one end of the memory that two ranks of a host share.
//
// Each side has an arena for its frames, which the other maps to read, and both map a ledger: one word for every frame
// that may be lent at once, in either direction. Lending a frame sends its place in the arena (a SharedNotice) as a
// small message; the frame stays as it is until the borrower has cleared its word. A word tells nothing else, so
// whatever the borrower writes there can only free, early or never, what was lent to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cleave/comm/frame.hpp"
#include "frame_arena.hpp"
#include "shared_mapping.hpp"

namespace cleave::comm {

/// What is sent in the place of a frame.
struct SharedNotice {
  std::uint64_t offset = 0, bytes = 0;  ///< in the sender's arena
  std::uint64_t word = 0;               ///< of the ledger
};

/// Which end of a link this is: their words are apart.
enum class SharedSide : std::uint8_t { maker, finder };

class SharedLink {
 public:
  /// Frames that can be lent at once, in either direction, and their bytes at most.
  static constexpr std::uint32_t kWords = 480;
  static constexpr std::int64_t kMostLent = std::int64_t{1} << 30;
  /// Size of the ledger.
  static constexpr std::int64_t kLedgerBytes = SharedMapping::kFirst + 2 * 4 * std::int64_t{kWords};

  /// Requires: ledger.bytes() == kLedgerBytes. `side`: maker for who made the ledger.
  SharedLink(std::shared_ptr<FrameArena> own, SharedMapping peer, SharedMapping ledger, SharedSide side);

  /// Takes the frame and says where it is; nothing, and the frame is left alone, when it is not in the arena or no more
  /// can be lent.
  [[nodiscard]] std::optional<SharedNotice> lend(Frame& frame);
  /// The frame that a message of the other side stands for; an empty one when the message is not a possible notice.
  [[nodiscard]] Frame borrow(std::span<const std::byte> notice) const;
  /// Lets a frame of the other side point into its arena.
  void extend(Frame& frame) const;
  /// How far into this side's arena `data` lies, if it does.
  [[nodiscard]] std::optional<std::int64_t> offset_of(const std::byte* data) const;
  /// Gives up what the other side has released.
  void collect();
  [[nodiscard]] bool idle() const { return lent_.empty(); }
  [[nodiscard]] std::int64_t lent_bytes() const { return lent_bytes_; }

 private:
  class Peer;
  struct Lent {
    std::uint32_t word;
    Frame frame;
  };
  std::shared_ptr<FrameArena> own_;
  std::shared_ptr<Peer> peer_;
  std::vector<std::uint32_t> free_words_;
  std::vector<Lent> lent_;
  std::int64_t lent_bytes_ = 0;
};

/// Keeps links whose transport has ended before all that it lent came back: what they hold stays as it is until then.
/// Lets go of those kept before to which everything has come back.
void keep_what_is_lent(std::vector<std::unique_ptr<SharedLink>> links);

}  // namespace cleave::comm
