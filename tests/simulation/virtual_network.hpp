// VirtualNetwork: the server's transport in a simulated world. One thread, one seed, no real time: waiting moves a
// clock to the next thing that happens, so a patience of ten seconds takes none, and the same seed gives the same run.
//
// Ranks are callbacks that are given each frame that the server sends them, and may send what they like, when they
// like. A rank that does not read leaves its frames lying here, where they are counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::simulation {

class VirtualNetwork final : public comm::Transport {
 public:
  /// Time that one look for messages takes, so that whoever looks again and again gets older by it.
  static constexpr Seconds kLook{1e-4};
  /// From one rank to another.
  static constexpr Seconds kLatency{1e-4};

  VirtualNetwork(ManualClock& clock, int ranks) : clock_(clock), ranks_(static_cast<std::size_t>(ranks)) {}

  /// Who is given the frames that go to `rank`.
  void attach(int rank, std::function<void(comm::Frame)> receiver) { at_rank(rank).receiver = std::move(receiver); }
  /// Calls `what` after `delay`.
  void after(Seconds delay, std::function<void()> what) {
    events_.emplace(std::pair(clock_.now() + std::max(delay, Seconds(0)), next_event_++), std::move(what));
  }
  /// A frame of `rank` reaches the server after `delay`; nothing of a rank that has died by then.
  void deliver(int rank, comm::Frame frame, Seconds delay = kLatency) {
    after(delay, [this, rank, f = std::make_shared<comm::Frame>(std::move(frame))] {
      if (!at_rank(rank).gone) inbox_.push_back({rank, std::move(*f)});
    });
  }
  /// The rank dies.
  void kill(int rank) {
    at_rank(rank).gone = true;
    at_rank(rank).unread.clear();
  }
  /// While it does not read, what is sent to it stays where it is.
  void set_reading(int rank, bool reads) {
    Rank& peer = at_rank(rank);
    peer.reads = reads;
    while (reads && !peer.unread.empty()) {
      pass_on(rank, std::move(peer.unread.front()));
      peer.unread.pop_front();
    }
  }
  /// So many bytes more count as sent to the rank and not read by it.
  void set_unread(int rank, std::int64_t bytes) { at_rank(rank).besides = bytes; }
  [[nodiscard]] Seconds now() const { return clock_.now(); }
  /// So many bytes of a rank the server takes in, it says.
  [[nodiscard]] std::int64_t expected(int rank) const { return ranks_[static_cast<std::size_t>(rank)].expected; }
  /// Most bytes that lay unread before one rank at once, so far.
  [[nodiscard]] std::int64_t most_unread() const { return most_unread_; }

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return static_cast<int>(ranks_.size()); }
  void send(int dest, comm::Frame frame) override {
    Rank& peer = at_rank(dest);
    if (peer.abandoned) {
      ++stats_.sends_dropped;
      return;
    }
    ++stats_.frames_sent;
    stats_.bytes_sent += frame.size();
    frame = comm::seal_payload(std::move(frame));
    if (peer.gone) return;
    if (peer.reads) return pass_on(dest, std::move(frame));
    peer.unread.push_back(std::move(frame));
    most_unread_ = std::max(most_unread_, bytes_pending(dest));
  }
  [[nodiscard]] std::optional<comm::Received> poll() override {
    clock_.advance(kLook);
    happen();
    if (inbox_.empty()) return std::nullopt;
    comm::Received first = std::move(inbox_.front());
    inbox_.pop_front();
    ++stats_.frames_received;
    return first;
  }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override {
    const Seconds deadline = clock_.now() + at_most;
    while (true) {
      if (auto received = poll()) return received;
      if (clock_.now() >= deadline) return std::nullopt;
      clock_.sleep_until(events_.empty() ? deadline : std::min(deadline, events_.begin()->first.first));
    }
  }
  void interrupt() override {}
  [[nodiscard]] bool gone(int rank) const override { return ranks_[static_cast<std::size_t>(rank)].gone; }
  void expect(int rank, std::int64_t bytes) override { at_rank(rank).expected = bytes; }
  void abandon(int rank) override { at_rank(rank).abandoned = true; }
  [[nodiscard]] std::int64_t bytes_pending(int rank) const override {
    std::int64_t bytes = ranks_[static_cast<std::size_t>(rank)].besides;
    for (const comm::Frame& frame : ranks_[static_cast<std::size_t>(rank)].unread) bytes += frame.size();
    return bytes;
  }
  bool close(Seconds) override { return true; }
  [[nodiscard]] comm::TransportStats stats() const override { return stats_; }

 private:
  struct Rank {
    std::function<void(comm::Frame)> receiver;
    std::deque<comm::Frame> unread;
    bool reads = true, gone = false, abandoned = false;
    std::int64_t expected = 0, besides = 0;
  };
  Rank& at_rank(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void pass_on(int rank, comm::Frame frame) {
    after(kLatency, [this, rank, f = std::make_shared<comm::Frame>(std::move(frame))] {
      Rank& peer = at_rank(rank);
      if (!peer.gone && peer.receiver) peer.receiver(std::move(*f));
    });
  }
  void happen() {
    while (!events_.empty() && events_.begin()->first.first <= clock_.now()) {
      const auto what = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      what();
    }
  }

  ManualClock& clock_;
  std::vector<Rank> ranks_;
  std::map<std::pair<Seconds, std::int64_t>, std::function<void()>> events_;  // by time, then in their order
  std::int64_t next_event_ = 0, most_unread_ = 0;
  std::deque<comm::Received> inbox_;
  comm::TransportStats stats_;
};

}  // namespace cleave::simulation
