// A device rank's end of the side channel. Every failure here only means that deaths are noticed later.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "liveness.hpp"
#include "sockets.hpp"

namespace cleave::comm {

LivenessLink::LivenessLink(const LivenessAddress& address, int rank, Seconds at_most)
    : key_(address.key), rank_(rank), on_host_(address.port == 0) {
  if (address.host.front() == 0) return;
  const bool connected = on_host_ ? connect_on_host(address, at_most) : connect_on_network(address, at_most);
  greeted_ = on_host_;  // there is no challenge
  if (!connected || (on_host_ && !send_greeting())) {
    socket_.reset();
  } else {
    send_at_once(socket_.get());
  }
}

bool LivenessLink::connect_on_host(const LivenessAddress& address, Seconds at_most) {
  constexpr std::size_t kAbstractName = offsetof(sockaddr_un, sun_path) + 1;
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
  socket_ = Descriptor(::socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(at_most.value());
  limit.tv_usec = static_cast<suseconds_t>((at_most.value() - static_cast<double>(limit.tv_sec)) * 1e6);
  return socket_ && ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
         ::connect(socket_.get(), where, size) == 0;
}

bool LivenessLink::send_greeting() const {
  const LivenessGreeting greeting = greeting_of(key_, challenge_, rank_);
  return ::send(socket_.get(), &greeting, sizeof greeting, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof greeting);
}

bool LivenessLink::read_challenge() {
  const ssize_t received =
      ::recv(socket_.get(), challenge_.data() + challenge_bytes_, challenge_.size() - challenge_bytes_, MSG_DONTWAIT);
  switch (heard(received)) {
    case Heard::end: return false;
    case Heard::nothing: return true;
    case Heard::something: break;
  }
  challenge_bytes_ += static_cast<std::size_t>(received);
  if (challenge_bytes_ < challenge_.size()) return true;
  greeted_ = true;
  return send_greeting();
}

// Alone: what follows may be for whoever takes the connection.
bool LivenessLink::read_answer() {
  std::byte answer;
  const ssize_t received = ::recv(socket_.get(), &answer, sizeof answer, MSG_DONTWAIT);
  let_in_ = received == sizeof answer;
  return heard(received) != Heard::end;
}

bool LivenessLink::read_rest() {
  std::array<std::byte, 64> bytes;
  while (true) {
    std::array<Descriptor, 2> bells;
    const std::ptrdiff_t received = receive_with_descriptors(socket_.get(), bytes, bells);
    if (bells[0] && bells[1] && !bell_) {
      bell_ = Bell(std::move(bells[0]));
      bell_of_hub_ = Bell(std::move(bells[1]));
      send_byte(socket_.get(), kHasBells);
    }
    switch (heard(received)) {
      case Heard::end: return false;
      case Heard::nothing: return true;
      case Heard::something:
        if (received < std::ssize(bytes)) return true;  // that was all; an end is readable once more
    }
  }
}

void LivenessLink::look() {
  bell_.silence();
  if (!socket_ || closed_) return;
  const bool answers = !on_host_ && !let_in_;
  if (!greeted_ ? read_challenge() : answers ? read_answer() : read_rest()) return;
  closed_ = true;
  closed_at_ = clock_.now();
}

void LivenessLink::wake(int rank) {
  if (rank != 0 || !socket_ || closed_) return;
  if (bell_of_hub_) return bell_of_hub_.ring();
  if (greeted_) send_byte(socket_.get(), kWake);
}

bool LivenessLink::gone(int rank) const { return rank == 0 && is_over(closed_, closed_at_, clock_); }

}  // namespace cleave::comm
