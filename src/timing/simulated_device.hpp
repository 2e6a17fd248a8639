// SimulatedDevice: one device of a Star: downlink, processor and uplink, what is queued for them, what it holds.
//
// What happens within a device, in order of time: its downlink is free again, a panel was computed, its uplink is free
// again. Devices know nothing of each other; what they share (the server's interface, the count of messages) is in
// SharedState. Where nothing shared can delay them, a device may be brought to a later time alone, in one go:
// advance().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/timing/event_queue.hpp"
#include "cleave/timing/resources.hpp"
#include "cleave/timing/star.hpp"
#include "cleave/timing/stream.hpp"
#include "server_port.hpp"

namespace cleave::timing {

/// What the devices of a fleet share.
struct SharedState {
  fleet::ServerProfile server;
  ServerPort out, in;  // the server's interface
  Random jitter;
  std::uint64_t messages = 0;            // that had jitter
  std::int64_t sequence = 0;             // of everything that happens within devices
  ResourceObserver* observer = nullptr;  // of every use of a resource
  std::vector<Stream*> ended{};          // Star::take_ended()
  bool unlimited = false;                // the server's interface, either way

  [[nodiscard]] Seconds latency_of(const fleet::DeviceProfile& device) {
    Seconds latency = device.latency;
    if (device.jitter.value() > 0) latency += device.jitter * jitter.uniform(messages++);
    return latency;
  }
};

/// First in, first out, in one piece of memory; others may be taken out and put in between too, which moves those on
/// the shorter side.
template <class T>
class Fifo {
 public:
  [[nodiscard]] bool empty() const { return head_ == items_.size(); }
  [[nodiscard]] const T& front() const { return items_[head_]; }
  [[nodiscard]] std::size_t size() const { return items_.size() - head_; }
  auto begin() { return items_.begin() + static_cast<std::ptrdiff_t>(head_); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin() + static_cast<std::ptrdiff_t>(head_); }
  auto end() const { return items_.end(); }
  [[nodiscard]] T& operator[](std::size_t index) { return items_[head_ + index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const { return items_[head_ + index]; }
  const T* where() const { return items_.data() + head_; }
  void push(const T& item) { items_.push_back(item); }
  void insert(typename std::vector<T>::iterator at, const T& item) {
    if (head_ == 0 || at - begin() > end() - at) {
      items_.insert(at, item);
      return;
    }
    const auto place = std::move(begin(), at, begin() - 1);
    --head_;
    *place = item;
  }
  void erase(typename std::vector<T>::iterator at) {
    if (at - begin() > end() - at) {
      items_.erase(at);
      return;
    }
    std::move_backward(begin(), at, at + 1);
    pop();
  }
  void pop() {
    if (++head_ < items_.size() && (head_ < kMostGone || 2 * head_ < items_.size())) return;
    items_.erase(items_.begin(), begin());
    head_ = 0;
  }
  void clear() {
    items_.clear();
    head_ = 0;
  }

 private:
  static constexpr std::size_t kMostGone = 64;  // and half of all
  std::vector<T> items_;
  std::size_t head_ = 0;
};

/// Asks for memory that will be read soon. It need not be there: nothing is read of an empty queue's.
inline void prefetch_lines(const void* begin, std::size_t size) {
  constexpr std::size_t kLine = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  for (std::size_t at = 0; at < size; at += kLine) __builtin_prefetch(reinterpret_cast<const void*>(first + at));
}

class SimulatedDevice {
 public:
  explicit SimulatedDevice(fleet::DeviceProfile profile);

  fleet::DeviceProfile declared;
  Usage usage;  // what is under way counts whole: usage_by()
  bool present = true;
  std::uint32_t epoch = 0;  // changes whenever it leaves or hangs
  Seconds hung_at;

  [[nodiscard]] bool hung() const { return hung_; }

  /// Takes over a stream, whose panels and tails are known. Requires: present.
  void submit(Stream& stream, Seconds now, SharedState& shared);
  /// What the stream `id`, which stays, brought or would have brought is not used any more. Returns the stream, if it
  /// is over.
  Stream* release(std::int64_t id, Seconds now, SharedState& shared);
  /// Drops a stream of which nothing was begun; false: it was.
  bool drop(Stream& stream, Seconds now, SharedState& shared);

  /// The next thing within the device; kNever: nothing until something is submitted.
  [[nodiscard]] EventKey next_within() const;
  /// The next answer at the server, of those whose last panel is on its way.
  [[nodiscard]] EventKey next_answer() const;
  /// A moment no later than the next answer of a stream that is not among those of next_answer() yet, and no earlier
  /// than next_within(); kNever: none will come before that answer. Requires: no jitter, so that answers come in the
  /// order in which they went up.
  [[nodiscard]] EventKey no_answer_before(Seconds now) const;

  /// Asks for what serving it will read first: its memory is seldom in the caches.
  void prefetch() const { prefetch_lines(this, sizeof(SimulatedDevice)); }

  /// Serves what next_within() tells.
  void serve(SharedState& shared);
  /// Serves everything within the device up to and including `until`. Requires: no answer is due before.
  void advance(Seconds until, SharedState& shared);
  /// Begins what the server's interface was asked for and now serves.
  void begin_down(Seconds now, SharedState& shared);
  void begin_up(Seconds now, SharedState& shared);
  /// Takes the answer that next_answer() tells, and its stream's memory, off the device.
  Stream& answer(Seconds now, SharedState& shared);

  /// Streams find so much more memory taken.
  void reserve(Bytes bytes, Seconds now, SharedState& shared);
  /// Resources are taken until these times. Requires: nothing was submitted.
  void occupy(Seconds down_until, Seconds compute_until, Seconds up_until, SharedState& shared);

  void slow(double factor);
  void hang(Seconds now);
  /// Gone, with everything that it held: returns that.
  std::vector<Stream*> leave(Seconds now);
  void join();

  /// For how long its resources are still taken at declared rates, not counting what is under way; and the same as a
  /// stream at `priority` meets it, counting what is under way.
  [[nodiscard]] DeviceState state() const;
  /// `usage` without what lies after `now`: on a device that has become slow that may be days.
  [[nodiscard]] Usage usage_by(Seconds now) const;
  [[nodiscard]] DeviceState state_ahead_of(const Priority& priority, Seconds now) const;

 private:
  static constexpr Seconds kNotTaken{std::numeric_limits<double>::infinity()};
  struct Link {
    Seconds free_at = kNotTaken;  // when what is under way is through
    std::int64_t sequence = 0;
    bool waiting = false;  // for the server's interface
    Seconds expected;      // to be through if all that wait go first
    [[nodiscard]] bool taken() const { return waiting || free_at != kNotTaken; }
  };
  /// One direction: the link and the server's interface, both of which carry a panel's bytes.
  struct Way {
    ServerPort& port;
    Link& link;
    BytesPerSecond link_rate, nic_rate;
    Seconds Tail::*tail;
  };
  struct Carried {
    Seconds link_time, nic_time, end;
  };
  /// A stream that is coming down, with what the queue asks of it: looking at each would be a miss of the caches.
  struct Coming {
    Priority priority;
    Stream* stream = nullptr;
    Bytes resident, down;
    bool begun = false;
    [[nodiscard]] Bytes still_down() const { return begun ? stream->still_down : down; }
  };
  /// A panel that comes down.
  struct Operands {
    Stream* stream = nullptr;
    Panel panel;
    std::int32_t number = 0;  // of the panel
  };
  /// What goes up of a panel.
  struct Result {
    Stream* stream = nullptr;
    Bytes bytes;
    std::int32_t number = 0;  // of the panel
  };
  /// A panel of a background stream that has arrived.
  struct Background {
    Seconds arrival;
    std::int64_t sequence = 0;
    Operands operands;
  };
  struct Computed {
    Seconds at;
    std::int64_t sequence = 0;
    Result result;
  };
  struct Answer {
    EventKey when;
    Stream* stream = nullptr;
  };

  /// At one time, the earlier of these is first.
  enum class Next : std::uint8_t { nothing, down_free, computed, up_free, background };
  struct Pick {
    Next what = Next::nothing;
    Seconds at = kNotTaken;
    std::int64_t sequence = 0;
  };
  [[nodiscard]] Pick pick() const;
  void advance_up(Seconds until, SharedState& shared);
  [[nodiscard]] std::size_t next_down() const;
  void forget(Stream& stream);
  void hasten(const Stream& user);
  void pump_down(Seconds now, SharedState& shared, Seconds until = Seconds(-1));
  void pump_up(Seconds now, SharedState& shared);
  void ask_down(Stream& stream, Seconds now, SharedState& shared);
  void send_down(const Operands& operands, Seconds now, SharedState& shared);
  void take_in(const Operands& operands, Seconds arrival, SharedState& shared);
  void compute(const Operands& operands, Seconds arrival, SharedState& shared);
  // Panels of background streams, as far as the processor begins them before another panel arrives.
  void compute_background(Seconds until, bool including, SharedState& shared);
  void ask_up(const Result& result, Seconds now, SharedState& shared);
  void send_up(const Result& result, Seconds now, SharedState& shared);
  [[nodiscard]] Way way_down(SharedState& shared);
  [[nodiscard]] Way way_up(SharedState& shared);
  bool has_to_wait(const Way& way, const Stream& stream, std::int64_t number, Bytes bytes, SharedState& shared);
  static Carried carry(const Way& way, Bytes bytes, Seconds now, SharedState& shared);
  void ask_up_first(SharedState& shared);
  void forget_all();
  void prefetch_further() const;

  // Rates as they are now, the factor of churn included. The processor's is not beside what changes with every panel:
  // compilers read two numbers at once, and wait where one was written just before.
  FlopsPerSecond compute_;
  BytesPerSecond downlink_, uplink_;
  Link down_, up_;
  // Of the last panel down, and of the last answer up: a message never overtakes the one before it.
  Seconds arrival_, answered_;
  SerialResource processor_;
  Priority latest_;                              // of what was computed last
  bool in_order_ = true;                         // what waits for the uplink is computed in order of priority
  Operands asked_down_;                          // that wait for the server's interface
  Result asked_up_;                              // that waits for it
  Fifo<Background> background_;                  // that wait for the processor, in order of arrival
  Fifo<Computed> computed_;                      // results that the processor has, or will have, done
  Fifo<Result> up_queue_;                        // those that met a taken uplink, by priority
  Fifo<Answer> answers_;                         // on their last way
  Fifo<Coming> down_queue_;                      // whose panels are still to come down, by priority
  std::size_t begun_down_ = 0;                   // of these, those of which a panel has come
  std::vector<Stream*> finishing_;               // down, but not all up, in no order
  Fifo<Stream*> holds_;                          // in order of submission
  const Stream *in_ = nullptr, *out_ = nullptr;  // that the links carried last; they may be over
  Bytes memory_taken_, reserved_;
  bool hung_ = false;
};

}  // namespace cleave::timing
