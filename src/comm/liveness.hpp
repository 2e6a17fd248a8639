// A side channel that shows at once when a process is gone: one idle TCP connection from every rank to rank 0, which
// the kernel closes when either process ends, however it ends. MPI itself tells nobody of a death.
//
// The transport owns one end for as long as the process lives. Where no connection can be made, nothing is ever
// reported as gone, and only silence shows a death. A process that is stopped keeps its connections.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/units.hpp"

namespace cleave::comm {

/// Where rank 0 listens; plain bytes, so that it can be broadcast. The token keeps strangers out. Port 0: nowhere.
struct LivenessAddress {
  std::array<char, 64> host{};
  std::uint16_t port = 0;
  std::uint64_t token = 0;
};

/// The end of rank 0.
class LivenessHub {
 public:
  /// Listens on this host's loopback interface, or on all its interfaces under its own name.
  LivenessHub(int ranks, bool one_host);
  ~LivenessHub();
  LivenessHub(const LivenessHub&) = delete;
  LivenessHub& operator=(const LivenessHub&) = delete;

  [[nodiscard]] const LivenessAddress& address() const { return address_; }
  /// Accepts who has come and notices who has gone; never waits.
  void look();
  [[nodiscard]] bool connected(int rank) const { return peers_[static_cast<std::size_t>(rank)].descriptor >= 0; }
  [[nodiscard]] bool gone(int rank) const;

 private:
  struct Peer {
    int descriptor = -1;
    bool closed = false;
    Seconds closed_at;
  };
  struct Newcomer {
    int descriptor = -1;
    std::size_t bytes = 0;
    std::array<unsigned char, 16> greeting{};
    Seconds since;
  };
  void accept_newcomers();
  bool greet(Newcomer& newcomer);

  LivenessAddress address_;
  int listener_ = -1;
  std::vector<Newcomer> newcomers_;
  std::vector<Peer> peers_;  // by rank
  SteadyClock clock_;
};

/// The end of every other rank.
class LivenessLink {
 public:
  LivenessLink(const LivenessAddress& address, int rank, Seconds at_most);
  ~LivenessLink();
  LivenessLink(const LivenessLink&) = delete;
  LivenessLink& operator=(const LivenessLink&) = delete;

  [[nodiscard]] bool connected() const { return descriptor_ >= 0; }
  void look();
  [[nodiscard]] bool gone() const;

 private:
  int descriptor_ = -1;
  bool closed_ = false;
  Seconds closed_at_;
  SteadyClock clock_;
};

}  // namespace cleave::comm
