// The ledger, and the bounds of what comes from the other side.
#include "shared_link.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <type_traits>

#include "cleave/base/error.hpp"

namespace cleave::comm {

namespace {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 4);
static_assert(std::is_trivially_copyable_v<SharedNotice> && sizeof(SharedNotice) == 24);

constexpr std::uint32_t kFree = 0, kLent = 1;

}  // namespace

// What is mapped of the other side, and the ledger; frames that were borrowed keep it.
class SharedLink::Peer final : public FrameMemory {
 public:
  Peer(SharedMapping arena, SharedMapping ledger, SharedSide side)
      : arena_(std::move(arena)), ledger_(std::move(ledger)), side_(side) {}

  void give_back(std::byte*, std::int64_t, std::uint32_t ticket) noexcept override {
    words(side_ == SharedSide::maker ? SharedSide::finder : SharedSide::maker)[ticket].store(kFree,
                                                                                             std::memory_order_release);
  }
  // Words for what this end lends.
  [[nodiscard]] SharedWord* own_words() const { return words(side_); }
  [[nodiscard]] const SharedMapping& arena() const { return arena_; }

 private:
  [[nodiscard]] SharedWord* words(SharedSide lender) const {
    return reinterpret_cast<SharedWord*>(ledger_.data() + SharedMapping::kFirst) +
           (lender == SharedSide::maker ? 0 : kWords);
  }
  SharedMapping arena_, ledger_;
  SharedSide side_;
};

SharedLink::SharedLink(std::shared_ptr<FrameArena> own, SharedMapping peer, SharedMapping ledger, SharedSide side)
    : own_(std::move(own)) {
  CLEAVE_ASSERT(ledger.bytes() == kLedgerBytes, "a ledger of {} bytes", ledger.bytes());
  peer_ = std::make_shared<Peer>(std::move(peer), std::move(ledger), side);
  for (std::uint32_t word = kWords; word > 0; --word) free_words_.push_back(word - 1);
}

std::optional<SharedNotice> SharedLink::lend(Frame& frame) {
  if (frame.empty() || !own_->holds(frame.data())) return std::nullopt;
  if (free_words_.empty() || lent_bytes_ + frame.size() > kMostLent) return std::nullopt;
  const std::uint32_t word = free_words_.back();
  free_words_.pop_back();
  const SharedNotice notice{static_cast<std::uint64_t>(own_->offset_of(frame.data())),
                            static_cast<std::uint64_t>(frame.size()), word};
  peer_->own_words()[word].store(kLent, std::memory_order_relaxed);
  lent_bytes_ += frame.size();
  lent_.push_back({word, std::move(frame)});
  return notice;
}

Frame SharedLink::borrow(std::span<const std::byte> message) const {
  SharedNotice notice;
  if (message.size() != sizeof notice) return {};
  std::memcpy(&notice, message.data(), sizeof notice);
  const auto room = static_cast<std::uint64_t>(peer_->arena().bytes());
  if (notice.word >= kWords || notice.bytes == 0 || notice.bytes > static_cast<std::uint64_t>(kMaxFrameBytes) ||
      notice.bytes > room || notice.offset > room - notice.bytes || notice.offset % kAlignment != 0) {
    return {};
  }
  return Frame::borrow(peer_->arena().data() + notice.offset, static_cast<std::int64_t>(notice.bytes), peer_,
                       static_cast<std::uint32_t>(notice.word));
}

void SharedLink::extend(Frame& frame) const {
  const SharedMapping& arena = peer_->arena();
  frame.set_reach({arena.data(), static_cast<std::size_t>(arena.bytes())}, peer_);
}

std::optional<std::int64_t> SharedLink::offset_of(const std::byte* data) const {
  return own_->holds(data) ? std::optional(own_->offset_of(data)) : std::nullopt;
}

void SharedLink::collect() {
  for (std::size_t i = 0; i < lent_.size();) {
    if (peer_->own_words()[lent_[i].word].load(std::memory_order_acquire) == kLent) {
      ++i;
      continue;
    }
    lent_bytes_ -= lent_[i].frame.size();
    free_words_.push_back(lent_[i].word);
    if (i + 1 < lent_.size()) std::swap(lent_[i], lent_.back());
    lent_.pop_back();
  }
}

void keep_what_is_lent(std::vector<std::unique_ptr<SharedLink>> links) {
  static auto* const kept = new std::vector<std::unique_ptr<SharedLink>>;
  std::erase_if(*kept, [](const std::unique_ptr<SharedLink>& link) {
    link->collect();
    return link->idle();
  });
  for (auto& link : links) {
    if (link && !link->idle()) kept->push_back(std::move(link));
  }
}

}  // namespace cleave::comm
