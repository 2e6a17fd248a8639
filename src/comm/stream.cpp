// sendmsg and recvmsg that do not wait, and where in a message they have come to.
#include "stream.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cleave/base/error.hpp"
#include "sockets.hpp"

namespace cleave::comm {

namespace {

// Messages of one call, and bytes that one stream may move before another has its turn.
constexpr std::size_t kTogether = 32;
constexpr std::size_t kTurn = std::size_t{8} << 20;

// An idle connection to a process whose last word was lost is found out within the first; a host that is cut off is
// waited for as long as a rank waits for its server by default, and as long again.
constexpr int kProbeAfter = 10, kProbeEvery = 10, kProbes = 60;

}  // namespace

void prepare_for_stream(int socket) {
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(socket, level, option, &value, sizeof value);  // AF_UNIX has none of them
  };
  send_at_once(socket);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfter);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEvery);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void Stream::send(Frame frame, StreamKind kind) {
  if (abandoned_ || ended_) return;
  pending_bytes_ += frame.size();
  const StreamHeader header{.bytes = static_cast<std::uint64_t>(frame.size()), .kind = kind};
  outgoing_.push_back({header, std::move(frame)});
}

std::int64_t Stream::write() {
  std::int64_t along = 0;
  for (std::size_t moved = 0; can_write() && moved < kTurn;) {
    std::array<iovec, 2 * kTogether> parts;
    std::size_t count = 0, skip = sent_;
    const auto add = [&](void* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes > skipped) parts[count++] = {static_cast<std::byte*>(data) + skipped, bytes - skipped};
    };
    for (std::size_t i = 0; i < std::min(outgoing_.size(), kTogether); ++i) {
      add(&outgoing_[i].header, sizeof(StreamHeader));
      add(outgoing_[i].frame.data(), static_cast<std::size_t>(outgoing_[i].frame.size()));
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t bytes = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (heard(bytes) == Heard::nothing) {
      writable_ = false;
      break;
    }
    if (bytes < 0) {  // nobody is there any more; what it sent before may still be read
      outgoing_.clear();
      sent_ = 0;
      pending_bytes_ = 0;
      readable_ = abandoned_ = true;
      break;
    }
    moved += static_cast<std::size_t>(bytes);
    sent_ += static_cast<std::size_t>(bytes);
    std::int64_t through = 0;
    while (!outgoing_.empty()) {
      const auto whole = sizeof(StreamHeader) + static_cast<std::size_t>(outgoing_.front().frame.size());
      if (sent_ < whole) break;
      sent_ -= whole;
      pending_bytes_ -= abandoned_ ? 0 : outgoing_.front().frame.size();
      outgoing_.pop_front();
      ++through;
    }
    along += std::max<std::int64_t>(0, through - 1);
  }
  return along;
}

bool Stream::flushed() const {
  int unsent = 0;
  return ended_ || (outgoing_.empty() && (::ioctl(socket_.get(), TIOCOUTQ, &unsent) != 0 || unsent == 0));
}

void Stream::abandon() {
  abandoned_ = true;
  pending_bytes_ = 0;
  while (outgoing_.size() > (sent_ > 0 ? 1U : 0U)) outgoing_.pop_back();
}

std::int64_t Stream::read() {
  const std::int64_t before = waiting();
  std::size_t moved = 0;
  while (true) {
    consume_stage();
    if (!can_read() || staged() > 0 || moved >= kTurn) break;
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    if (in_message_) {
      parts[count++] = {frame_.data() + frame_bytes_, static_cast<std::size_t>(frame_.size() - frame_bytes_)};
    }
    const std::size_t direct = count == 0 ? 0 : parts[0].iov_len;
    if (!stage_) stage_ = std::make_unique<std::array<std::byte, kStage>>();
    parts[count++] = {stage_->data(), stage_->size()};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    const Heard what = heard(bytes);
    if (what == Heard::end) end();
    if (what == Heard::nothing) readable_ = false;
    if (what != Heard::something) break;
    const auto received = static_cast<std::size_t>(bytes);
    moved += received;
    frame_bytes_ += static_cast<std::int64_t>(std::min(received, direct));
    stage_begin_ = 0;
    stage_end_ = received - std::min(received, direct);
    if (in_message_ && frame_bytes_ == frame_.size()) finish();
  }
  return waiting() - before;
}

void Stream::consume_stage() {
  while (staged() > 0 && room()) {
    const std::byte* const from = stage_->data() + stage_begin_;
    std::size_t used = 0;
    if (to_skip_ > 0) {
      used = static_cast<std::size_t>(std::min<std::uint64_t>(to_skip_, staged()));
      to_skip_ -= used;
    } else if (in_message_) {
      used = std::min(staged(), static_cast<std::size_t>(frame_.size() - frame_bytes_));
      std::memcpy(frame_.data() + frame_bytes_, from, used);
      frame_bytes_ += static_cast<std::int64_t>(used);
      if (frame_bytes_ == frame_.size()) finish();
    } else {
      used = std::min(staged(), sizeof header_ - header_bytes_);
      std::memcpy(reinterpret_cast<std::byte*>(&header_) + header_bytes_, from, used);
      header_bytes_ += used;
      if (header_bytes_ == sizeof header_ && !begin()) return end();
    }
    stage_begin_ += used;
  }
}

// False: that was no header.
bool Stream::begin() {
  header_bytes_ = 0;
  const bool known = header_.kind == StreamKind::frame || header_.kind == StreamKind::notice;
  if (header_.magic != StreamHeader::kMagic || !known || header_.bytes > static_cast<std::uint64_t>(kMaxFrameBytes)) {
    return false;
  }
  if (static_cast<std::int64_t>(header_.bytes) > incoming_.most_bytes) {
    to_skip_ = header_.bytes;
    ++oversized_;
    return true;
  }
  frame_ = Frame(static_cast<std::int64_t>(header_.bytes));
  frame_bytes_ = 0;
  in_message_ = true;
  incoming_.bytes += frame_.size();
  ++incoming_.messages;
  if (frame_.empty()) finish();
  return true;
}

void Stream::finish() {
  in_message_ = false;
  whole_.push_back({std::exchange(frame_, Frame()), header_.kind});
}

Stream::Message Stream::take() {
  CLEAVE_ASSERT(!whole_.empty(), "{} messages", whole_.size());
  Message message = std::move(whole_.front());
  whole_.pop_front();
  incoming_.bytes -= message.frame.size();
  --incoming_.messages;
  return message;
}

// What has come whole stays to be taken.
void Stream::end() {
  ended_ = true;
  socket_.reset();
  if (in_message_) {
    incoming_.bytes -= frame_.size();
    --incoming_.messages;
  }
  in_message_ = false;
  frame_ = Frame();
  stage_begin_ = stage_end_ = 0;
  to_skip_ = 0;
  outgoing_.clear();
  sent_ = 0;
  pending_bytes_ = 0;
}

}  // namespace cleave::comm
