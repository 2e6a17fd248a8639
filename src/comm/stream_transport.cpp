// All streams of a rank, watched together: epoll tells once of each that has become readable or writable, and the
// stream knows until when it is.
#include "stream_transport.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/comm/message.hpp"
#include "sockets.hpp"

namespace cleave::comm {

namespace {

// Frames of at most so many bytes wait for the next poll() or wait() if they follow another one to the same rank within
// this time, and go together: a call of the kernel costs more than what it carries. The first goes at once.
constexpr std::int64_t kSmallFrame = 8 << 10;
constexpr Seconds kSoonAfter{100e-6};

// Memory that was lent comes back without a word: who has lent any looks so often.
constexpr Seconds kLongestSleep{20e-3};
// The kernel does not say when the last byte has been acknowledged.
constexpr Seconds kFlushNap{0.5e-3};

}  // namespace

StreamTransport::StreamTransport(int rank, std::vector<Descriptor> sockets,
                                 std::vector<std::unique_ptr<SharedLink>> links)
    : rank_(rank),
      streams_(sockets.size()),
      links_(std::move(links)),
      sent_at_(sockets.size(), Seconds(-1)),
      addresses_(sockets.size()),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      interrupts_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CLEAVE_ASSERT(links_.size() == streams_.size(), "{} links of {} ranks", links_.size(), streams_.size());
  if (!events_ || !interrupts_) throw EnvironmentError("epoll_create1, eventfd", "the transport", std::strerror(errno));
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (!sockets[i]) continue;
    prepare_for_stream(sockets[i].get());
    addresses_[i] = peer_address(sockets[i].get());
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = i}};
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, sockets[i].get(), &event) != 0) {
      throw EnvironmentError("epoll_ctl", "the transport", std::strerror(errno));
    }
    streams_[i] = std::make_unique<Stream>(std::move(sockets[i]));
    peers_.push_back(static_cast<int>(i));
  }
}

StreamTransport::~StreamTransport() {
  if (!closed_) StreamTransport::progress();
  keep_what_is_lent(std::move(links_));
}

void StreamTransport::send(int dest, Frame frame) {
  CLEAVE_ASSERT(!closed_ && dest >= 0 && dest < size() && streams_[at(dest)] && frame.size() <= kMaxFrameBytes,
                "{} bytes to rank {}", frame.size(), dest);
  Stream& stream = *streams_[at(dest)];
  if (stream.abandoned()) {
    ++stats_.sends_dropped;
    return;
  }
  ++stats_.frames_sent;
  stats_.bytes_sent += frame.size();
  const std::unique_ptr<SharedLink>& link = links_[at(dest)];
  const auto notice = link ? link->lend(frame) : std::nullopt;
  if (notice) {
    ++stats_.frames_shared;
    Frame message(sizeof *notice);
    std::memcpy(message.data(), &*notice, sizeof *notice);
    stream.send(std::move(message), StreamKind::notice);
  } else {
    stream.send(seal_payload(std::move(frame)), StreamKind::frame);
  }
  const Seconds now = clock_.now();
  if (stream.pending_bytes() <= kSmallFrame && now - sent_at_[at(dest)] < kSoonAfter) return;
  sent_at_[at(dest)] = now;
  stats_.batches_sent += stream.write() > 0 ? 1 : 0;
}

void StreamTransport::hear_of_streams() {
  std::array<epoll_event, 64> events;
  for (int ready = 64; ready == 64;) {
    ready = ::epoll_wait(events_.get(), events.data(), 64, 0);
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      Stream& stream = *streams_[event.data.u64];
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) stream.set_readable();
      if ((event.events & ~static_cast<std::uint32_t>(EPOLLIN)) != 0) stream.set_writable();
    }
  }
}

void StreamTransport::write(int rank) {
  Stream& stream = *streams_[at(rank)];
  if (stream.can_write()) stats_.batches_sent += stream.write() > 0 ? 1 : 0;
}

void StreamTransport::move(int rank) {
  write(rank);
  Stream& stream = *streams_[at(rank)];
  if (stream.can_read()) {
    for (std::int64_t whole = stream.read(); whole > 0; --whole) arrived_.push_back(rank);
    const Incoming& incoming = stream.incoming();
    stats_.most_taken_in = std::max(stats_.most_taken_in, incoming.bytes);
    stats_.most_messages = std::max(stats_.most_messages, incoming.messages);
  }
  // What was lent to a rank that is gone is free, and its own memory is let go.
  if (std::unique_ptr<SharedLink>& link = links_[at(rank)]) {
    if (gone(rank)) {
      link.reset();
    } else if (!link->idle()) {
      link->collect();
    }
  }
}

bool StreamTransport::can_move() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](int rank) { return streams_[at(rank)]->can_read() || streams_[at(rank)]->can_write(); });
}

void StreamTransport::progress() {
  hear_of_streams();
  for (const int rank : peers_) move(rank);
}

std::optional<Received> StreamTransport::take() {
  if (arrived_.empty()) return std::nullopt;
  const int source = arrived_.front();
  arrived_.pop_front();
  Stream::Message message = streams_[at(source)]->take();
  Received received{source, std::move(message.frame)};
  const std::unique_ptr<SharedLink>& link = links_[at(source)];
  if (message.kind == StreamKind::notice) {
    received.frame = link ? link->borrow(std::as_const(received.frame).bytes()) : Frame();
  }
  if (link) link->extend(received.frame);
  ++stats_.frames_received;
  stats_.bytes_received += received.frame.size();
  return received;
}

// What has come is handed over before more is taken in: who reads ahead of its reader fills memory and gains nothing.
std::optional<Received> StreamTransport::poll() {
  if (arrived_.empty()) {
    progress();
  } else {
    for (const int rank : peers_) write(rank);
  }
  return take();
}

std::optional<Received> StreamTransport::wait(Seconds at_most) {
  const Seconds deadline = clock_.now() + at_most;
  while (true) {
    if (auto received = poll()) return received;
    const Seconds now = clock_.now();
    if (now >= deadline) return std::nullopt;
    if (!can_move() && sleep(std::min(kLongestSleep, deadline - now))) return std::nullopt;
  }
}

// True: it was interrupted.
bool StreamTransport::sleep(Seconds at_most) {
  std::array<pollfd, 2> events{{{interrupts_.get(), POLLIN, 0}, {events_.get(), POLLIN, 0}}};
  timespec rest{};
  rest.tv_sec = static_cast<time_t>(at_most.value());
  rest.tv_nsec = static_cast<long>((at_most.value() - static_cast<double>(rest.tv_sec)) * 1e9);
  if (::ppoll(events.data(), events.size(), &rest, nullptr) <= 0) return false;
  std::uint64_t count = 0;
  return events[0].revents != 0 && ::read(interrupts_.get(), &count, sizeof count) == sizeof count;
}

void StreamTransport::interrupt() {
  const std::uint64_t one = 1;
  (void)!::write(interrupts_.get(), &one, sizeof one);
}

std::optional<std::int64_t> StreamTransport::reached(int dest, const void* data) const {
  const std::unique_ptr<SharedLink>& link = links_[at(dest)];
  return link ? link->offset_of(static_cast<const std::byte*>(data)) : std::nullopt;
}

bool StreamTransport::gone(int rank) const {
  const std::unique_ptr<Stream>& stream = streams_[at(rank)];
  return stream && stream->ended() && stream->waiting() == 0;
}

std::int64_t StreamTransport::bytes_pending(int rank) const {
  return streams_[at(rank)] ? streams_[at(rank)]->pending_bytes() : 0;
}

void StreamTransport::expect(int rank, std::int64_t bytes) {
  if (streams_[at(rank)]) streams_[at(rank)]->expect(std::clamp(bytes, kUnasked, kMostBytes));
}

void StreamTransport::abandon(int rank) {
  if (streams_[at(rank)]) streams_[at(rank)]->abandon();
}

// Until the other hosts have acknowledged everything: who ends with something unread resets its connections, and what
// was still under way would be lost.
bool StreamTransport::close(Seconds at_most) {
  const Seconds deadline = clock_.now() + at_most;
  while (true) {
    // Taking in what still comes lets peers send the rest to us, and so take in what we send.
    while (poll()) {}
    const bool flushed = std::all_of(peers_.begin(), peers_.end(), [&](int rank) {
      return streams_[at(rank)]->abandoned() || streams_[at(rank)]->flushed();
    });
    if (flushed || clock_.now() >= deadline) {
      closed_ = true;
      return flushed;
    }
    clock_.sleep_until(clock_.now() + kFlushNap);
  }
}

TransportStats StreamTransport::stats() const {
  TransportStats stats = stats_;
  for (const int rank : peers_) {
    const Stream& stream = *streams_[at(rank)];
    stats.oversized += stream.oversized();
    stats.sends_pending += stream.abandoned() ? 0 : stream.pending();
  }
  for (const auto& link : links_) {
    if (link) stats.bytes_lent += link->lent_bytes();
  }
  return stats;
}

}  // namespace cleave::comm
