// Rank 0's end of the side channel. Every failure here only means that deaths are noticed later, so none is an error.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "interfaces.hpp"
#include "liveness.hpp"
#include "sockets.hpp"

namespace cleave::comm {

namespace {

// A newcomer that does not say who it is for so long is a stranger.
constexpr Seconds kGreetingPatience{5};
// The listener is left alone for so long when a connection could not be taken, for want of descriptors.
constexpr Seconds kListenerPause{0.2};
// Connections that are taken at one look: strangers that come without end do not keep rank 0 here.
constexpr int kAcceptsAtOnce = 64;
// What an event is about: a peer's rank, or one of these.
constexpr std::uint64_t kListenerEvent = ~std::uint64_t{0}, kNewcomerEvent = kListenerEvent - 1;

// Bytes of the address of a socket in the abstract namespace before its name: its family, and a zero.
constexpr std::size_t kAbstractName = offsetof(sockaddr_un, sun_path) + 1;

// SO_PEERPIDFD of Linux 6.5, which the C library of Debian 12 does not name yet.
constexpr int kPeerProcess = 77;

// The process at the other end of a Unix socket. Older kernels name a number that may have passed to another process
// by now: that is only so when the connection is closed.
Descriptor process_of(int socket, pid_t pid) {
  int process = -1;
  socklen_t size = sizeof process;
  if (::getsockopt(socket, SOL_SOCKET, kPeerProcess, &process, &size) == 0) return Descriptor(process);
  Descriptor opened(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd state{socket, 0, 0};
  if (::poll(&state, 1, 0) < 0 || state.revents != 0) opened.reset();
  return opened;
}

}  // namespace

LivenessGreeting greeting_of(const SipKey& key, const LivenessChallenge& challenge, std::int64_t rank) {
  std::array<std::byte, sizeof challenge + sizeof rank> message;
  std::memcpy(message.data(), challenge.data(), challenge.size());
  std::memcpy(message.data() + challenge.size(), &rank, sizeof rank);
  return {.rank = rank, .tag = siphash(key, message)};
}

LivenessHub::LivenessHub(int ranks, bool one_host, const std::string& interface)
    : one_host_(one_host), peers_(static_cast<std::size_t>(ranks)) {
  const auto bytes = static_cast<ssize_t>(address_.key.size());
  if (::getrandom(address_.key.data(), address_.key.size(), 0) != bytes) return;
  if (!(one_host ? listen_on_host() : listen_on_network(interface))) {
    address_.host = {};
    listener_.reset();
    return;
  }
  if (one_host) bell_ = Bell::make();
  events_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  watch(listener_.get(), kListenerEvent);
  listens_ = true;
}

// The kernel finds a name that nobody has.
bool LivenessHub::listen_on_host() {
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  socklen_t size = sizeof where;
  if (!listen(reinterpret_cast<sockaddr*>(&where), sizeof where.sun_family) ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&where), &size) != 0) {
    return false;
  }
  const std::size_t length = size - kAbstractName;
  if (size <= kAbstractName || length >= address_.host.size()) return false;
  std::memcpy(address_.host.data(), &where.sun_path[1], length);
  return true;
}

bool LivenessHub::listen_on_network(const std::string& interface) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_ANY);
  if (!interface.empty() && ::inet_pton(AF_INET, interface.c_str(), &where.sin_addr) != 1) return false;
  socklen_t size = sizeof where;
  if (!listen(reinterpret_cast<sockaddr*>(&where), size) ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&where), &size) != 0) {
    return false;
  }
  address_.port = ntohs(where.sin_port);
  if (interface.empty()) {
    const std::vector<std::string> addresses = own_addresses();
    for (std::size_t i = 0; i < std::min(addresses.size(), address_.digits.size()); ++i) {
      std::copy_n(addresses[i].begin(), std::min(addresses[i].size(), address_.digits[i].size() - 1),
                  address_.digits[i].begin());
    }
    return ::gethostname(address_.host.data(), address_.host.size() - 1) == 0;
  }
  std::copy_n(interface.begin(), std::min(interface.size(), address_.host.size() - 1), address_.host.begin());
  return true;
}

bool LivenessHub::listen(const sockaddr* where, socklen_t size) {
  listener_ = Descriptor(::socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return listener_ && ::bind(listener_.get(), where, size) == 0 && ::listen(listener_.get(), 1024) == 0;
}

void LivenessHub::watch(int descriptor, std::uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event);
}

// A listener that nobody can take a connection from stays readable: it is not watched until that may have changed.
void LivenessHub::accept_newcomers() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (accept_newcomer()) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED) return;
    (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    listens_ = false;
    listens_again_ = clock_.now() + kListenerPause;
    return;
  }
}

// False: there was none, or it could not be taken, as errno says.
bool LivenessHub::accept_newcomer() {
  sockaddr_in from{};
  socklen_t size = sizeof from;
  Descriptor socket(::accept4(listener_.get(), one_host_ ? nullptr : reinterpret_cast<sockaddr*>(&from),
                              one_host_ ? nullptr : &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return false;
  Newcomer newcomer{.socket = std::move(socket), .from = from.sin_addr.s_addr, .since = clock_.now()};
  if (one_host_) {
    ucred who{};
    size = sizeof who;
    if (::getsockopt(newcomer.socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != ::geteuid()) {
      return true;  // another user's
    }
  } else {
    const auto bytes = static_cast<ssize_t>(newcomer.challenge.size());
    if (::getrandom(newcomer.challenge.data(), newcomer.challenge.size(), 0) != bytes ||
        ::send(newcomer.socket.get(), newcomer.challenge.data(), newcomer.challenge.size(),
               MSG_DONTWAIT | MSG_NOSIGNAL) != bytes) {
      return true;
    }
    send_at_once(newcomer.socket.get());
  }
  make_room(newcomer.from);
  watch(newcomer.socket.get(), kNewcomerEvent);
  newcomers_.push_back(std::move(newcomer));
  return true;
}

// Of too many newcomers the oldest goes: who belongs here answers at once. One address has room for every rank.
void LivenessHub::make_room(in_addr_t from) {
  const auto from_there = [&](const Newcomer& newcomer) { return newcomer.from == from; };
  const auto there = static_cast<std::size_t>(std::count_if(newcomers_.begin(), newcomers_.end(), from_there));
  if (there >= peers_.size() + kStrangers / 4) {
    newcomers_.erase(std::find_if(newcomers_.begin(), newcomers_.end(), from_there));
  } else if (newcomers_.size() >= peers_.size() + kStrangers) {
    newcomers_.erase(newcomers_.begin());
  }
}

// True: the newcomer has said who it is, or is to be sent away. Descriptors that come along are not taken.
bool LivenessHub::greet(Newcomer& newcomer) {
  std::array<std::byte, sizeof(LivenessGreeting)> bytes;
  const std::size_t missing = bytes.size() - newcomer.bytes;
  const ssize_t received = ::recv(newcomer.socket.get(), bytes.data(), missing, MSG_DONTWAIT);
  switch (heard(received)) {
    case Heard::end: return true;
    case Heard::nothing: return clock_.now() - newcomer.since >= kGreetingPatience;
    case Heard::something: break;
  }
  std::memcpy(reinterpret_cast<std::byte*>(&newcomer.greeting) + newcomer.bytes, bytes.data(),
              static_cast<std::size_t>(received));
  newcomer.bytes += static_cast<std::size_t>(received);
  if (newcomer.bytes < bytes.size()) return clock_.now() - newcomer.since >= kGreetingPatience;
  const std::int64_t rank = newcomer.greeting.rank;
  const bool known = rank > 0 && rank < static_cast<std::int64_t>(peers_.size()) &&
                     same_tag(newcomer.greeting.tag, greeting_of(address_.key, newcomer.challenge, rank).tag);
  if (known && !peers_[static_cast<std::size_t>(rank)].connected) let_in(newcomer);
  return true;
}

void LivenessHub::let_in(Newcomer& newcomer) {
  Peer& peer = peers_[static_cast<std::size_t>(newcomer.greeting.rank)];
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(newcomer.greeting.rank)}};
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_MOD, newcomer.socket.get(), &event);
  peer.socket = std::move(newcomer.socket);
  peer.connected = true;
  ++connections_;
  if (!one_host_) return send_byte(peer.socket.get(), kWake);
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(peer.socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) {
    peer.pid = who.pid;
    peer.process = process_of(peer.socket.get(), who.pid);
  }
  if (bell_) peer.bell = Bell::make();
  if (!peer.bell) return;
  const Descriptor to_read = peer.bell.another(), to_ring = bell_.another();
  if (to_read && to_ring) { send_with_descriptors(peer.socket.get(), kWake, std::array{to_read.get(), to_ring.get()}); }
}

void LivenessHub::hear(Peer& peer) {
  if (peer.closed) return;
  std::array<char, 64> bytes;
  const ssize_t received = ::recv(peer.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  switch (heard(received)) {
    case Heard::nothing: return;
    case Heard::something:  // what is left, or an end, is readable once more
      peer.has_bell |= std::find(bytes.begin(), bytes.begin() + received, kHasBells) != bytes.begin() + received;
      return;
    case Heard::end: break;
  }
  peer.closed = true;
  peer.closed_at = clock_.now();
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
}

void LivenessHub::look() {
  if (!events_) return;
  bell_.silence();
  std::array<epoll_event, 64> events;  // what does not fit is told the next time
  const int ready = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
    if (tag == kListenerEvent) {
      accept_newcomers();
    } else if (tag != kNewcomerEvent) {
      hear(peers_[tag]);
    }
  }
  std::erase_if(newcomers_, [&](Newcomer& newcomer) { return greet(newcomer); });
  if (listener_ && complete()) {
    listener_.reset();
    newcomers_.clear();
  } else if (listener_ && !listens_ && clock_.now() >= listens_again_) {
    watch(listener_.get(), kListenerEvent);
    listens_ = true;
  }
}

void LivenessHub::wake(int rank) {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer.connected || peer.closed) return;
  if (peer.has_bell && peer.bell) return peer.bell.ring();
  send_byte(peer.socket.get(), kWake);
}

bool LivenessHub::gone(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return is_over(peer.closed, peer.closed_at, clock_);
}

PeerProcess LivenessHub::process(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return {.pid = peer.process ? peer.pid : 0, .descriptor = peer.process.get()};
}

}  // namespace cleave::comm
