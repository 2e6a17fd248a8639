// FaultyTransport: another transport with faults put before it, seeded, for tests of what must survive them.
//
// Rules pick frames by direction, kind and number; the first rule that picks a frame decides what happens to it.
// The same seed and the same order of frames give the same faults.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/random.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::comm {

enum class FaultKind : std::uint8_t {
  drop,      ///< never arrives
  delay,     ///< arrives later, and so behind frames that were sent after it
  twice,     ///< arrives twice
  corrupt,   ///< one random bit flipped
  truncate,  ///< cut at a random length, perhaps to nothing
};

enum class Direction : std::uint8_t { sending, receiving };

struct FaultRule {
  Direction direction = Direction::sending;
  Kind kind = Kind::task;  ///< which frames it looks at
  FaultKind fault = FaultKind::drop;
  double probability = 1.0;  ///< of each frame that it looks at
  std::int64_t skip = 0;     ///< leaves the first so many alone: chooses the phase of a run
  std::int64_t count = -1;   ///< acts at most so often; -1: always
  Seconds delay{0.05};       ///< for delay
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, std::vector<FaultRule> rules, std::uint64_t seed);

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void send(int dest, Frame frame) override;
  [[nodiscard]] std::optional<Received> poll() override;
  [[nodiscard]] std::optional<Received> wait(Seconds at_most) override;
  void progress() override { inner_->progress(); }
  void interrupt() override { inner_->interrupt(); }
  [[nodiscard]] bool gone(int rank) const override { return inner_->gone(rank); }
  void abandon(int rank) override { inner_->abandon(rank); }
  bool close(Seconds at_most) override { return inner_->close(at_most); }
  [[nodiscard]] TransportStats stats() const override { return inner_->stats(); }

  /// Faults that each rule has caused so far.
  [[nodiscard]] const std::vector<std::int64_t>& caused() const { return caused_; }

 private:
  struct Held {
    Seconds due;
    Direction direction;
    int peer;
    Frame frame;
  };
  const FaultRule* pick(Direction direction, const Frame& frame);
  Frame damage(FaultKind fault, Frame frame);
  void filter(Received received);
  void release_due();
  [[nodiscard]] Seconds until_due(Seconds at_most) const;

  std::unique_ptr<Transport> inner_;
  std::vector<FaultRule> rules_;
  std::vector<std::int64_t> seen_, caused_;
  Random random_;
  std::uint64_t draws_ = 0;
  SteadyClock clock_;
  std::vector<Held> held_;
  std::deque<Received> arrived_;
};

}  // namespace cleave::comm
