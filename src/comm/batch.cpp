// Writing and reading the entries of a batch.
#include "batch.hpp"

#include <fmt/format.h>

#include <cstring>

#include "cleave/base/error.hpp"

namespace cleave::comm {

namespace {

using BatchWord = std::uint64_t;
constexpr BatchWord kNotice = BatchWord{1} << 63;
constexpr std::int64_t kWord = sizeof(BatchWord);

std::int64_t whole_words(std::int64_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

}  // namespace

std::int64_t Batch::bytes_of(const Frame& frame) { return kWord + whole_words(frame.size()); }

void Batch::add(Frame frame, bool notice) {
  CLEAVE_ASSERT(has_room_for(frame), "{} bytes to {} of a batch", frame.size(), bytes_);
  bytes_ += bytes_of(frame);
  entries_.push_back({std::move(frame), notice});
}

Frame Batch::take() {
  Frame message(std::exchange(bytes_, 0));
  std::byte* to = message.data();
  for (const Entry& entry : entries_) {
    const auto bytes = static_cast<BatchWord>(entry.frame.size());
    const BatchWord word = bytes | (entry.notice ? kNotice : 0);
    std::memcpy(to, &word, sizeof word);
    if (bytes > 0) std::memcpy(to + kWord, entry.frame.data(), bytes);
    std::memset(to + kWord + bytes, 0, static_cast<std::size_t>(bytes_of(entry.frame) - kWord) - bytes);
    to += bytes_of(entry.frame);
  }
  entries_.clear();
  return message;
}

std::pair<Frame, bool> Batch::take_only() {
  CLEAVE_ASSERT(count() == 1, "{} frames", count());
  std::pair<Frame, bool> only{std::move(entries_.front().frame), entries_.front().notice};
  entries_.clear();
  bytes_ = 0;
  return only;
}

void for_each_of_batch(std::span<const std::byte> message, const std::function<void(Frame, bool)>& visit) {
  if (std::ssize(message) > Batch::kMost) return visit(Frame(), false);  // of many empty frames it would fill memory
  while (!message.empty()) {
    BatchWord word = 0;
    if (message.size() < sizeof word) return visit(Frame(), false);
    std::memcpy(&word, message.data(), sizeof word);
    message = message.subspan(sizeof word);
    const BatchWord bytes = word & ~kNotice;
    if (bytes > message.size() ||
        static_cast<BatchWord>(whole_words(static_cast<std::int64_t>(bytes))) > message.size()) {
      return visit(Frame(), false);
    }
    Frame frame(static_cast<std::int64_t>(bytes));
    if (bytes > 0) std::memcpy(frame.data(), message.data(), bytes);
    visit(std::move(frame), (word & kNotice) != 0);
    message = message.subspan(static_cast<std::size_t>(whole_words(static_cast<std::int64_t>(bytes))));
  }
}

}  // namespace cleave::comm
