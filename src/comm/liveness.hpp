// A side channel for what MPI does not tell: one connection from every rank to rank 0, through a Unix socket where all
// ranks are on one host, whose first byte after a pause costs half of what TCP takes, else TCP.
//
// It shows at once when a process is gone, because the kernel closes the connection when either process ends, however
// it ends. And it wakes, so that a rank which waits for a message can sleep in the kernel instead of asking MPI again
// and again: a byte on the connection makes descriptor() readable. Through a Unix socket rank 0 gives each rank two
// bells (bell.hpp), on which a sleeper is woken in two thirds of the time of a byte: one for either direction, both
// made by rank 0, which takes no descriptor from anybody. Neither means anything else; one too many or too few costs a
// nap. And it is how rank 0 knows which process a rank is: the kernel says so, the rank is not asked.
//
// Strangers can connect. They are let in for no longer than it takes to show that they cannot answer: a Unix socket
// lets in processes of the same user that know the key, a network socket who answers a challenge with it
// (base/siphash.hpp). There are never more of them than kStrangers beside the ranks themselves; the oldest make room.
// When every rank is there, nobody listens any more.
//
// The transport owns one end for as long as the process lives. Where no connection can be made, nothing is ever
// reported as gone, and only silence shows a death. A process that is stopped keeps its connections.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bell.hpp"
#include "cleave/base/clock.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"
#include "descriptor.hpp"

namespace cleave::comm {

/// Where rank 0 listens; plain bytes, so that it can be broadcast over MPI.
struct LivenessAddress {
  std::array<char, 64> host{};  // empty: nowhere
  std::uint16_t port = 0;       // 0: `host` is a name in the abstract namespace of this host's Unix sockets
  // On the network, if `host` is the name of rank 0's host: its addresses, in digits, as many as there are.
  std::array<std::array<char, 16>, 8> digits{};
  SipKey key{};
};

/// Either end, as the transport sees it.
class Liveness {
 public:
  virtual ~Liveness() = default;
  /// Notices who has come and who has gone, forgets what woke; never waits.
  virtual void look() = 0;
  /// Wakes a rank if it is connected to this one; never waits.
  virtual void wake(int rank) = 0;
  /// Readable when look() has something to do, as bell() is; -1: never, or never again.
  [[nodiscard]] virtual int descriptor() const = 0;
  [[nodiscard]] virtual int bell() const = 0;
  /// True: whoever has this channel to this rank is, or was, connected.
  [[nodiscard]] virtual bool complete() const = 0;
  [[nodiscard]] virtual bool gone(int rank) const = 0;
  /// The process of a rank of this host, as the kernel has it.
  [[nodiscard]] virtual PeerProcess process(int /*rank*/) const { return {}; }
};

/// What a rank sends to be let in.
struct LivenessGreeting {
  std::int64_t rank = -1;
  SipTag tag{};  // of the challenge, and the rank; the challenge is zero through a Unix socket
};
using LivenessChallenge = std::array<std::byte, 16>;
[[nodiscard]] LivenessGreeting greeting_of(const SipKey& key, const LivenessChallenge& challenge, std::int64_t rank);

/// The end of rank 0.
class LivenessHub final : public Liveness {
 public:
  /// Newcomers at most, beside as many as there are ranks; of one address of the network, this share of all.
  static constexpr std::size_t kStrangers = 64;

  /// Listens for this host alone, or on the network: at `interface`, an IPv4 address of this host in digits, or, where
  /// that is empty, on all its interfaces under its own name.
  LivenessHub(int ranks, bool one_host, const std::string& interface = {});

  [[nodiscard]] const LivenessAddress& address() const { return address_; }
  void look() override;
  void wake(int rank) override;
  [[nodiscard]] int descriptor() const override { return events_.get(); }
  [[nodiscard]] int bell() const override { return bell_.descriptor(); }
  [[nodiscard]] bool connected(int rank) const { return peers_[static_cast<std::size_t>(rank)].connected; }
  [[nodiscard]] bool complete() const override { return connections_ + 1 == static_cast<std::int64_t>(peers_.size()); }
  [[nodiscard]] bool gone(int rank) const override;
  [[nodiscard]] PeerProcess process(int rank) const override;
  /// The connection of a rank, for other use; the hub is then to be destroyed. Requires: connected(rank).
  [[nodiscard]] Descriptor take(int rank) { return std::move(peers_[static_cast<std::size_t>(rank)].socket); }

 private:
  struct Peer {
    Descriptor socket, process;
    std::int64_t pid = 0;
    Bell bell;
    bool connected = false;  // is, or was
    bool has_bell = false;   // and has said so
    bool closed = false;
    Seconds closed_at;
  };
  struct Newcomer {
    Descriptor socket;
    in_addr_t from = 0;
    Seconds since;
    LivenessChallenge challenge{};
    std::size_t bytes = 0;
    LivenessGreeting greeting{};
  };
  bool listen_on_host();
  bool listen_on_network(const std::string& interface);
  bool listen(const sockaddr* where, socklen_t size);
  void watch(int descriptor, std::uint64_t tag);
  void accept_newcomers();
  bool accept_newcomer();
  void make_room(in_addr_t from);
  bool greet(Newcomer& newcomer);
  void let_in(Newcomer& newcomer);
  void hear(Peer& peer);

  LivenessAddress address_;
  bool one_host_;
  Descriptor listener_;
  Bell bell_;
  Descriptor events_;             // tells which of the connections have something to read
  bool listens_ = false;          // events_ tells of the listener too
  Seconds listens_again_;         // else from then on
  std::int64_t connections_ = 0;  // of peers, so far
  std::vector<Newcomer> newcomers_;
  std::vector<Peer> peers_;  // by rank
  SteadyClock clock_;
};

/// The end of every other rank.
class LivenessLink final : public Liveness {
 public:
  LivenessLink(const LivenessAddress& address, int rank, Seconds at_most);

  [[nodiscard]] bool connected() const { return static_cast<bool>(socket_); }
  /// Rank 0 has let this rank in, and said so; not said through a Unix socket.
  [[nodiscard]] bool let_in() const { return let_in_; }
  [[nodiscard]] bool closed() const { return closed_; }
  /// The connection, for other use; this end is then to be destroyed. Nothing of what came after let_in() has been
  /// read.
  [[nodiscard]] Descriptor take() { return std::move(socket_); }
  void look() override;
  void wake(int rank) override;
  [[nodiscard]] int descriptor() const override { return closed_ ? -1 : socket_.get(); }
  [[nodiscard]] int bell() const override { return bell_.descriptor(); }
  [[nodiscard]] bool complete() const override { return connected(); }
  [[nodiscard]] bool gone(int rank) const override;

 private:
  bool connect_on_host(const LivenessAddress& address, Seconds at_most);
  bool connect_on_network(const LivenessAddress& address, Seconds at_most);
  bool connect(const sockaddr* where, socklen_t size, Seconds at_most);
  [[nodiscard]] bool send_greeting() const;
  // False: the other side has closed.
  bool read_challenge();
  bool read_answer();
  bool read_rest();

  SipKey key_;
  int rank_;
  bool on_host_;
  Descriptor socket_;
  LivenessChallenge challenge_{};
  std::size_t challenge_bytes_ = 0;
  bool greeted_ = false, let_in_ = false;
  Bell bell_, bell_of_hub_;
  bool closed_ = false;
  Seconds closed_at_;
  SteadyClock clock_;
};

}  // namespace cleave::comm
