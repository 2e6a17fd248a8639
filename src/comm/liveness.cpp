// Sockets of the side channel. Every failure here only means that deaths are noticed later, so none is an error.
#include "liveness.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace cleave::comm {

namespace {

// What a process sent before it ended may still be on its way when its connection is closed already.
constexpr Seconds kGrace{0.1};
// A newcomer that does not say who it is for so long is a stranger.
constexpr Seconds kGreetingPatience{5};
constexpr std::size_t kMaxNewcomers = 64;
// What an event is about: a peer's rank, or one of these.
constexpr std::uint64_t kListenerEvent = ~std::uint64_t{0}, kNewcomerEvent = kListenerEvent - 1;

// The greeting: 8 bytes token, 8 bytes rank.
std::array<unsigned char, 16> greeting_of(std::uint64_t token, std::int64_t rank) {
  std::array<unsigned char, 16> bytes;
  std::memcpy(bytes.data(), &token, sizeof token);
  std::memcpy(bytes.data() + sizeof token, &rank, sizeof rank);
  return bytes;
}

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

// As send(), for one descriptor that the other process is to have too, or none (-1).
ssize_t send_with_descriptor(int socket, const void* data, std::size_t size, int passed, int flags) {
  iovec part{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof passed)> control{};
  if (passed >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof passed);
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  return ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

// As recv() that does not wait. A descriptor that comes along is kept if it is the first.
ssize_t receive_with_descriptor(int socket, void* data, std::size_t size, int& passed) {
  iovec part{data, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof passed)> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof passed)) {
    return bytes;
  }
  int came = -1;
  std::memcpy(&came, CMSG_DATA(header), sizeof came);
  if (passed < 0) std::swap(passed, came);
  close_descriptor(came);
  return bytes;
}

// Reads what there is, of descriptors the first; true: the other side has closed.
bool at_end(int descriptor, int& passed) {
  std::array<char, 64> rubbish;
  while (true) {
    const ssize_t bytes = receive_with_descriptor(descriptor, rubbish.data(), rubbish.size(), passed);
    if (bytes == static_cast<ssize_t>(rubbish.size())) continue;
    if (bytes > 0) return false;  // that was all; an end is readable once more
    if (bytes == 0) return true;
    if (errno == EINTR) continue;
    return errno != EAGAIN && errno != EWOULDBLOCK;
  }
}

// A full buffer is as good as a byte in it: whoever reads there has not woken yet.
void send_byte(int descriptor) {
  const char byte = 0;
  (void)!::send(descriptor, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int make_bell() { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
// A full count is as good as one more.
void ring(int bell) {
  const std::uint64_t one = 1;
  (void)!::write(bell, &one, sizeof one);
}
void silence(int bell) {
  std::uint64_t count = 0;
  if (bell >= 0) (void)!::read(bell, &count, sizeof count);
}

// Bytes of the address of a socket in the abstract namespace before its name: its family, and a zero.
constexpr std::size_t kAbstractName = offsetof(sockaddr_un, sun_path) + 1;

// A byte that wakes must not wait for the acknowledgement of the one before. Only TCP has any.
void send_at_once(int descriptor) {
  const int yes = 1;
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool over(bool closed, Seconds closed_at, const Clock& clock) { return closed && clock.now() - closed_at >= kGrace; }

}  // namespace

LivenessHub::LivenessHub(int ranks, bool one_host) : peers_(static_cast<std::size_t>(ranks)) {
  if (::getrandom(&address_.token, sizeof address_.token, 0) != sizeof address_.token) return;
  if (!(one_host ? listen_on_host() : listen_on_network())) {
    address_.host = {};
    close_descriptor(listener_);
    return;
  }
  if (one_host) bell_ = make_bell();
  events_ = ::epoll_create1(EPOLL_CLOEXEC);
  watch(listener_, kListenerEvent);
}

// The kernel finds a name that nobody has.
bool LivenessHub::listen_on_host() {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  socklen_t size = sizeof where;
  if (!listen(reinterpret_cast<sockaddr*>(&where), sizeof where.sun_family) ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &size) != 0) {
    return false;
  }
  const std::size_t length = size - kAbstractName;
  if (size <= kAbstractName || length >= address_.host.size()) return false;
  std::memcpy(address_.host.data(), &where.sun_path[1], length);
  return true;
}

bool LivenessHub::listen_on_network() {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof where;
  if (!listen(reinterpret_cast<sockaddr*>(&where), size) ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &size) != 0) {
    return false;
  }
  address_.port = ntohs(where.sin_port);
  return ::gethostname(address_.host.data(), address_.host.size() - 1) == 0;
}

bool LivenessHub::listen(const sockaddr* where, socklen_t size) {
  listener_ = ::socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return listener_ >= 0 && ::bind(listener_, where, size) == 0 && ::listen(listener_, 1024) == 0;
}

LivenessHub::~LivenessHub() {
  close_descriptor(events_);
  close_descriptor(listener_);
  close_descriptor(bell_);
  for (Newcomer& newcomer : newcomers_) {
    close_descriptor(newcomer.descriptor);
    close_descriptor(newcomer.bell);
  }
  for (Peer& peer : peers_) {
    close_descriptor(peer.descriptor);
    close_descriptor(peer.bell);
  }
}

void LivenessHub::watch(int descriptor, std::uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  (void)::epoll_ctl(events_, EPOLL_CTL_ADD, descriptor, &event);
}

void LivenessHub::accept_newcomers() {
  while (listener_ >= 0 && newcomers_.size() < kMaxNewcomers) {
    const int descriptor = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) return;
    newcomers_.push_back({.descriptor = descriptor, .since = clock_.now()});
    watch(descriptor, kNewcomerEvent);
  }
}

// True: the newcomer has said who it is, or was sent away; its descriptor has found its place.
bool LivenessHub::greet(Newcomer& newcomer) {
  const ssize_t bytes = receive_with_descriptor(newcomer.descriptor, newcomer.greeting.data() + newcomer.bytes,
                                                newcomer.greeting.size() - newcomer.bytes, newcomer.bell);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    if (clock_.now() - newcomer.since < kGreetingPatience) return false;
  } else if (bytes > 0) {
    newcomer.bytes += static_cast<std::size_t>(bytes);
    if (newcomer.bytes < newcomer.greeting.size()) return false;
    std::int64_t rank = -1;
    std::memcpy(&rank, newcomer.greeting.data() + sizeof address_.token, sizeof rank);
    const bool known = rank > 0 && rank < static_cast<std::int64_t>(peers_.size()) &&
                       newcomer.greeting == greeting_of(address_.token, rank);
    if (known && peers_[static_cast<std::size_t>(rank)].descriptor < 0) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(rank)}};
      (void)::epoll_ctl(events_, EPOLL_CTL_MOD, newcomer.descriptor, &event);
      send_at_once(newcomer.descriptor);
      const char byte = 0;
      if (bell_ >= 0) (void)send_with_descriptor(newcomer.descriptor, &byte, sizeof byte, bell_, MSG_DONTWAIT);
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      peer.descriptor = std::exchange(newcomer.descriptor, -1);
      peer.bell = std::exchange(newcomer.bell, -1);
      ++connections_;
      return true;
    }
  }
  close_descriptor(newcomer.descriptor);
  close_descriptor(newcomer.bell);
  return true;
}

void LivenessHub::look() {
  if (events_ < 0) return;
  silence(bell_);
  std::array<epoll_event, 64> events;  // what does not fit is told the next time
  const int ready = ::epoll_wait(events_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
    if (tag == kListenerEvent) {
      accept_newcomers();
    } else if (tag != kNewcomerEvent) {
      Peer& peer = peers_[tag];
      if (peer.closed || !at_end(peer.descriptor, peer.bell)) continue;
      peer.closed = true;
      peer.closed_at = clock_.now();
      (void)::epoll_ctl(events_, EPOLL_CTL_DEL, peer.descriptor, nullptr);
    }
  }
  std::erase_if(newcomers_, [&](Newcomer& newcomer) { return greet(newcomer); });
}

void LivenessHub::wake(int rank) {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.descriptor < 0 || peer.closed) return;
  if (peer.bell >= 0) return ring(peer.bell);
  send_byte(peer.descriptor);
}

bool LivenessHub::gone(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return over(peer.closed, peer.closed_at, clock_);
}

LivenessLink::LivenessLink(const LivenessAddress& address, int rank, Seconds at_most) {
  if (address.host.front() == 0) return;
  const bool connected = address.port == 0 ? connect_on_host(address, at_most) : connect_on_network(address, at_most);
  const auto greeting = greeting_of(address.token, rank);
  if (address.port == 0) bell_ = make_bell();
  if (!connected || send_with_descriptor(descriptor_, greeting.data(), greeting.size(), bell_, 0) !=
                        static_cast<ssize_t>(greeting.size())) {
    close_descriptor(descriptor_);
  } else {
    send_at_once(descriptor_);
  }
}

bool LivenessLink::connect_on_host(const LivenessAddress& address, Seconds at_most) {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  const std::size_t length = ::strnlen(address.host.data(), address.host.size());
  std::memcpy(&where.sun_path[1], address.host.data(), length);
  return connect(reinterpret_cast<const sockaddr*>(&where), static_cast<socklen_t>(kAbstractName + length), at_most);
}

bool LivenessLink::connect_on_network(const LivenessAddress& address, Seconds at_most) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.host.data(), std::to_string(address.port).c_str(), &hints, &found) != 0) return false;
  const bool connected = connect(found->ai_addr, found->ai_addrlen, at_most);
  ::freeaddrinfo(found);
  return connected;
}

// The limit for sending is also that for connecting, to a listener whose queue is full included.
bool LivenessLink::connect(const sockaddr* where, socklen_t size, Seconds at_most) {
  descriptor_ = ::socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(at_most.value());
  limit.tv_usec = static_cast<suseconds_t>((at_most.value() - static_cast<double>(limit.tv_sec)) * 1e6);
  return descriptor_ >= 0 && ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
         ::connect(descriptor_, where, size) == 0;
}

LivenessLink::~LivenessLink() {
  close_descriptor(descriptor_);
  close_descriptor(bell_);
  close_descriptor(bell_of_hub_);
}

void LivenessLink::look() {
  silence(bell_);
  if (descriptor_ < 0 || closed_ || !at_end(descriptor_, bell_of_hub_)) return;
  closed_ = true;
  closed_at_ = clock_.now();
}

void LivenessLink::wake(int rank) {
  if (rank != 0 || descriptor_ < 0 || closed_) return;
  if (bell_of_hub_ >= 0) return ring(bell_of_hub_);
  send_byte(descriptor_);
}

bool LivenessLink::gone(int rank) const { return rank == 0 && over(closed_, closed_at_, clock_); }

}  // namespace cleave::comm
