// A side channel for what MPI does not tell: one connection from every rank to rank 0, through a Unix socket where all
// ranks are on one host, whose first byte after a pause costs half of what TCP takes, else TCP.
//
// It shows at once when a process is gone, because the kernel closes the connection when either process ends, however
// it ends. And it wakes, so that a rank which waits for a message can sleep in the kernel instead of asking MPI again
// and again: a byte on the connection makes descriptor() readable. Through a Unix socket each rank is given the other's
// bell, a counter in the kernel (eventfd) on which a sleeper is woken in two thirds of the time of a byte. Neither
// means anything else; one too many or too few costs a nap.
//
// The transport owns one end for as long as the process lives. Where no connection can be made, nothing is ever
// reported as gone, and only silence shows a death. A process that is stopped keeps its connections.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/units.hpp"

namespace cleave::comm {

/// Where rank 0 listens; plain bytes, so that it can be broadcast. The token keeps strangers out.
struct LivenessAddress {
  std::array<char, 64> host{};  // empty: nowhere
  std::uint16_t port = 0;       // 0: `host` is a name in the abstract namespace of this host's Unix sockets
  std::uint64_t token = 0;
};

/// Either end, as the transport sees it.
class Liveness {
 public:
  virtual ~Liveness() = default;
  /// Notices who has come and who has gone, forgets what woke; never waits.
  virtual void look() = 0;
  /// Wakes a rank if it is connected to this one.
  virtual void wake(int rank) = 0;
  /// Readable when look() has something to do, as bell() is; -1: never, or never again.
  [[nodiscard]] virtual int descriptor() const = 0;
  [[nodiscard]] virtual int bell() const = 0;
  /// True: whoever has this channel to this rank is, or was, connected.
  [[nodiscard]] virtual bool complete() const = 0;
  [[nodiscard]] virtual bool gone(int rank) const = 0;
};

/// The end of rank 0.
class LivenessHub final : public Liveness {
 public:
  /// Listens for this host alone, or on all its interfaces under its own name.
  LivenessHub(int ranks, bool one_host);
  ~LivenessHub() override;
  LivenessHub(const LivenessHub&) = delete;
  LivenessHub& operator=(const LivenessHub&) = delete;

  [[nodiscard]] const LivenessAddress& address() const { return address_; }
  void look() override;
  void wake(int rank) override;
  [[nodiscard]] int descriptor() const override { return events_; }
  [[nodiscard]] int bell() const override { return bell_; }
  [[nodiscard]] bool connected(int rank) const { return peers_[static_cast<std::size_t>(rank)].descriptor >= 0; }
  [[nodiscard]] bool complete() const override { return connections_ + 1 == static_cast<std::int64_t>(peers_.size()); }
  [[nodiscard]] bool gone(int rank) const override;

 private:
  struct Peer {
    int descriptor = -1, bell = -1;
    bool closed = false;
    Seconds closed_at;
  };
  struct Newcomer {
    int descriptor = -1, bell = -1;
    std::size_t bytes = 0;
    std::array<unsigned char, 16> greeting{};
    Seconds since;
  };
  bool listen_on_host();
  bool listen_on_network();
  bool listen(const sockaddr* where, socklen_t size);
  void watch(int descriptor, std::uint64_t tag);
  void accept_newcomers();
  bool greet(Newcomer& newcomer);

  LivenessAddress address_;
  int listener_ = -1;
  int bell_ = -1;
  int events_ = -1;               // tells which of the connections have something to read
  std::int64_t connections_ = 0;  // of peers, so far
  std::vector<Newcomer> newcomers_;
  std::vector<Peer> peers_;  // by rank
  SteadyClock clock_;
};

/// The end of every other rank.
class LivenessLink final : public Liveness {
 public:
  LivenessLink(const LivenessAddress& address, int rank, Seconds at_most);
  ~LivenessLink() override;
  LivenessLink(const LivenessLink&) = delete;
  LivenessLink& operator=(const LivenessLink&) = delete;

  [[nodiscard]] bool connected() const { return descriptor_ >= 0; }
  void look() override;
  void wake(int rank) override;
  [[nodiscard]] int descriptor() const override { return closed_ ? -1 : descriptor_; }
  [[nodiscard]] int bell() const override { return bell_; }
  [[nodiscard]] bool complete() const override { return connected(); }
  [[nodiscard]] bool gone(int rank) const override;

 private:
  bool connect_on_host(const LivenessAddress& address, Seconds at_most);
  bool connect_on_network(const LivenessAddress& address, Seconds at_most);
  bool connect(const sockaddr* where, socklen_t size, Seconds at_most);

  int descriptor_ = -1, bell_ = -1, bell_of_hub_ = -1;
  bool closed_ = false;
  Seconds closed_at_;
  SteadyClock clock_;
};

}  // namespace cleave::comm
