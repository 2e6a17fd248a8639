// sendmsg, recvmsg, and the descriptors that travel with them.
#include "sockets.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace cleave::comm {

namespace {

// What a process sent before it ended may still be on its way when its connection is closed already.
constexpr Seconds kGrace{0.1};
// Linux passes at most so many descriptors at once (SCM_MAX_FD): with room for all of them, none comes unseen.
constexpr std::size_t kMostPassed = 253;

}  // namespace

void send_with_descriptors(int socket, char byte, std::span<const int> passed) {
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  const std::size_t bytes = std::min<std::size_t>(passed.size(), 4) * sizeof(int);
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), passed.data(), bytes);
  (void)!::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::ptrdiff_t receive_with_descriptors(int socket, std::span<std::byte> data, std::span<Descriptor> passed) {
  iovec part{data.data(), data.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostPassed * sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) return bytes;
  std::size_t next = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof number, sizeof number);
      Descriptor came(number);
      if (next < passed.size() && !passed[next]) passed[next++] = std::move(came);
    }
  }
  return bytes;
}

Heard heard(std::ptrdiff_t received) {
  if (received > 0) return Heard::something;
  if (received == 0) return Heard::end;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Heard::nothing : Heard::end;
}

std::string peer_address(int socket) {
  sockaddr_in there{};
  socklen_t size = sizeof there;
  std::array<char, INET_ADDRSTRLEN> digits{};
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &size) != 0 || there.sin_family != AF_INET ||
      ::inet_ntop(AF_INET, &there.sin_addr, digits.data(), digits.size()) == nullptr) {
    return {};
  }
  return digits.data();
}

void send_byte(int socket, char byte) { (void)!::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void send_at_once(int socket) {
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool is_over(bool closed, Seconds closed_at, const Clock& clock) { return closed && clock.now() - closed_at >= kGrace; }

}  // namespace cleave::comm
