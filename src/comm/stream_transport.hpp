// The transport between ranks of several hosts: one connection between rank 0 and each other rank, and nothing of MPI.
//
// Small messages and notices go over the streams (stream.hpp), also between ranks of one host; what those write to
// memory that they share stays where it is. No call here asks anything of MPI, whose own connections lock up, or end
// all ranks, when a rank dies in the middle of a transfer. Who waits sleeps in the kernel until something comes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/comm/transport.hpp"
#include "descriptor.hpp"
#include "shared_link.hpp"
#include "stream.hpp"

namespace cleave::comm {

class StreamTransport final : public Transport {
 public:
  /// `sockets` by rank: connected, and none where there is nothing to say. `links` by rank: null where memory is not
  /// shared. Requires: as many of either. Errors: EnvironmentError.
  StreamTransport(int rank, std::vector<Descriptor> sockets, std::vector<std::unique_ptr<SharedLink>> links);
  ~StreamTransport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(streams_.size()); }
  /// Requires: there is a connection to `dest`.
  void send(int dest, Frame frame) override;
  [[nodiscard]] std::optional<Received> poll() override;
  void progress() override;
  [[nodiscard]] std::optional<Received> wait(Seconds at_most) override;
  void interrupt() override;
  [[nodiscard]] std::optional<std::int64_t> reached(int dest, const void* data) const override;
  [[nodiscard]] bool shares_memory(int rank) const override { return links_[at(rank)] != nullptr; }
  /// Its connection has ended, and what came of it before was handed over.
  [[nodiscard]] bool gone(int rank) const override;
  [[nodiscard]] std::string address(int rank) const override { return addresses_[at(rank)]; }
  [[nodiscard]] std::int64_t bytes_pending(int rank) const override;
  void expect(int rank, std::int64_t bytes) override;
  void abandon(int rank) override;
  bool close(Seconds at_most) override;
  [[nodiscard]] TransportStats stats() const override;

 private:
  [[nodiscard]] static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  void hear_of_streams();
  void write(int rank);
  void move(int rank);
  [[nodiscard]] bool can_move() const;
  bool sleep(Seconds at_most);
  std::optional<Received> take();

  int rank_;
  bool closed_ = false;
  std::vector<std::unique_ptr<Stream>> streams_;    // by rank; null where there is no connection
  std::vector<std::unique_ptr<SharedLink>> links_;  // by rank
  std::vector<Seconds> sent_at_;                    // by rank: when something was last sent at once
  std::vector<int> peers_;                          // ranks that have a connection
  std::vector<std::string> addresses_;              // by rank: where that comes from
  std::deque<int> arrived_;                         // whose messages became whole, in that order
  Descriptor events_, interrupts_;
  TransportStats stats_;
  SteadyClock clock_;
};

}  // namespace cleave::comm
