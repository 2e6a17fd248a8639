// getifaddrs, and the routes that the kernel would take.
#include "interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>

#include "cleave/comm/mpi.hpp"
#include "descriptor.hpp"

namespace cleave::comm {

namespace {

std::string in_digits(const in_addr& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  return ::inet_ntop(AF_INET, &address, text.data(), text.size()) != nullptr ? text.data() : "";
}

// A datagram socket that is connected has an address, though it has sent nothing.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> results(found, ::freeaddrinfo);
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (!socket || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return {};
  }
  return (ntohl(own.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET ? std::string() : in_digits(own.sin_addr);
}

}  // namespace

std::string address_towards(const std::vector<std::string>& hosts) {
  std::string all;
  for (const std::string& host : hosts) {
    const std::string one = address_towards(host);
    if (one.empty() || (!all.empty() && one != all)) return {};
    all = one;
  }
  return all;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(found, ::freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    addresses.push_back(in_digits(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr));
  }
  return addresses;
}

std::optional<std::string> address_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(found, ::freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const std::string address = in_digits(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr);
    if (name == one->ifa_name || name == address) return address;
  }
  return std::nullopt;
}

}  // namespace cleave::comm
