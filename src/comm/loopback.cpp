// One mailbox per rank, each with its own lock; a sender wakes the owner of the mailbox that it puts a frame into.
#include "cleave/comm/loopback.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/comm/message.hpp"

namespace cleave::comm {

struct LoopbackHub::State {
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::deque<Received> frames;
    bool taken = false, closed = false, interrupted = false;
  };
  explicit State(int size) : mailboxes(static_cast<std::size_t>(size)) {}
  Mailbox& mailbox(int rank) { return mailboxes[static_cast<std::size_t>(rank)]; }
  std::vector<Mailbox> mailboxes;
};

namespace {

using Mailbox = LoopbackHub::State::Mailbox;

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub::State> state, int rank)
      : state_(std::move(state)), rank_(rank), abandoned_(state_->mailboxes.size(), false) {}
  ~LoopbackTransport() override { LoopbackTransport::close(Seconds(0)); }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(state_->mailboxes.size()); }

  void send(int dest, Frame frame) override {
    CLEAVE_ASSERT(dest >= 0 && dest < size() && frame.size() <= kMaxFrameBytes, "{} bytes to rank {}", frame.size(),
                  dest);
    if (abandoned_[static_cast<std::size_t>(dest)]) {
      ++stats_.sends_dropped;
      return;
    }
    frame = seal_payload(std::move(frame));
    ++stats_.frames_sent;
    stats_.bytes_sent += frame.size();
    Mailbox& box = state_->mailbox(dest);
    {
      const std::lock_guard lock(box.mutex);
      if (box.closed) return;
      box.frames.push_back({rank_, std::move(frame)});
    }
    box.arrived.notify_one();
  }

  std::optional<Received> poll() override {
    const std::lock_guard lock(own().mutex);
    return take();
  }

  std::optional<Received> wait(Seconds at_most) override {
    std::unique_lock lock(own().mutex);
    const auto awake = [&] { return !own().frames.empty() || own().interrupted; };
    const double seconds = std::clamp(at_most.value(), 0.0, 1e6);
    own().arrived.wait_for(lock, std::chrono::duration<double>(seconds), awake);
    own().interrupted = false;
    return take();
  }

  void interrupt() override {
    {
      const std::lock_guard lock(own().mutex);
      own().interrupted = true;
    }
    own().arrived.notify_all();
  }

  [[nodiscard]] bool gone(int rank) const override {
    Mailbox& box = state_->mailbox(rank);
    const std::lock_guard lock(box.mutex);
    return box.closed;
  }

  void abandon(int rank) override { abandoned_[static_cast<std::size_t>(rank)] = true; }

  // Whoever waits for a word from here must look again.
  bool close(Seconds) override {
    {
      const std::lock_guard lock(own().mutex);
      own().closed = true;
      own().frames.clear();
    }
    for (int other = 0; other < size(); ++other) {
      if (other == rank_) continue;
      Mailbox& box = state_->mailbox(other);
      {
        const std::lock_guard lock(box.mutex);
        box.interrupted = true;
      }
      box.arrived.notify_all();
    }
    return true;
  }

  [[nodiscard]] TransportStats stats() const override { return stats_; }

 private:
  [[nodiscard]] Mailbox& own() const { return state_->mailbox(rank_); }

  std::optional<Received> take() {
    if (own().frames.empty()) return std::nullopt;
    Received received = std::move(own().frames.front());
    own().frames.pop_front();
    ++stats_.frames_received;
    stats_.bytes_received += received.frame.size();
    return received;
  }

  std::shared_ptr<LoopbackHub::State> state_;
  int rank_;
  std::vector<bool> abandoned_;
  TransportStats stats_;
};

}  // namespace

LoopbackHub::LoopbackHub(int size) : state_(std::make_shared<State>(size)) {}

std::unique_ptr<Transport> LoopbackHub::endpoint(int rank) {
  Mailbox& box = state_->mailbox(rank);
  const std::lock_guard lock(box.mutex);
  CLEAVE_ASSERT(!box.taken, "rank {} has an endpoint already", rank);
  box.taken = true;
  return std::make_unique<LoopbackTransport>(state_, rank);
}

}  // namespace cleave::comm
