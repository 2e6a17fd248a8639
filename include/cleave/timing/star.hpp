// Star: the time model of docs/cost_model.md as a discrete-event simulation of devices around one server.
//
// Resources, each serial: a device's downlink, processor and uplink; the server's interface out and in. A device's
// links serve by priority, the interface by priority and longest tail (panels.hpp), processors in order of request. A
// panel asks for the interface when its link is free, is through when both have carried it (cut through), and arrives
// one latency later; computation and answer follow likewise. A device takes in the next stream only when its memory
// holds it beside those that it works on. Nothing is known here of what streams are for.
//
//   Star star(profiles, server);
//   star.submit(device, stream);                    // any number of them, now and later
//   while (Stream* answered = star.next_answer()) { ... star.now(), answered->measured ... }
//
// A caller that has events of its own merges them with next() by EventKey, and serves whichever comes first:
//
//   const EventKey soonest = star.next();
//   if (soonest < mine) answered = star.serve(); else { star.move_to(mine.at); ... }
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/timing/event_queue.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::timing {

/// Who watches what devices and the server's interface are taken for. Watching changes nothing.
class ResourceObserver {
 public:
  virtual ~ResourceObserver() = default;
  /// A use of a resource by a panel of `stream`, told when it begins.
  virtual void used(const Stream& stream, Resource resource, Seconds start, Seconds end, Bytes bytes) = 0;
};

class Star {
 public:
  /// Devices are named by their index here. `seed` feeds the jitter of messages only.
  Star(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, std::uint64_t seed = 0);
  Star(Star&&) noexcept;
  Star& operator=(Star&&) noexcept;
  ~Star();

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] Seconds now() const;
  [[nodiscard]] const fleet::DeviceProfile& declared(std::size_t device) const;

  /// Sends a stream on its way now. It stays where it is in memory until its answer, or until it is dropped, released
  /// or lost. Requires: the device is present; nothing of the stream was made or begun.
  void submit(std::size_t device, Stream& stream);
  /// Takes back a stream of which nothing was begun; false: it was, and is still under way.
  bool drop(std::size_t device, Stream& stream);
  /// What the stream `id`, which stays, brought or would have brought is not used any more. Returns it if it is over,
  /// with its memory; null: it is not there, or its last panel is still coming down and it will be forgotten then.
  Stream* release(std::size_t device, std::int64_t id);
  /// Memory of the device that is not available to streams from now on; a negative value frees it again.
  void reserve(std::size_t device, Bytes bytes);
  /// Resources of a device that nothing was submitted to yet are taken for so long from now.
  void occupy(std::size_t device, Seconds down, Seconds compute, Seconds up);

  /// When something happens next in here; kNever: nothing until something is submitted.
  [[nodiscard]] EventKey next();
  /// Serves what next() tells, and moves the time there. Returns the stream whose answer it is; null: none.
  /// Requires: next() is not kNever.
  Stream* serve();
  /// Nothing happens in here until `at`: the time moves there.
  void move_to(Seconds at);
  /// Serves until the next answer, which it returns, no later than `deadline`; null: there is none, and the time is
  /// `deadline`, if that is finite.
  Stream* next_answer(Seconds deadline = kNever.at);

  // Churn. Of a device that hangs nothing ends; of one that leaves everything that it holds is lost, and returned.
  [[nodiscard]] bool present(std::size_t device) const;
  [[nodiscard]] bool hung(std::size_t device) const;
  /// Since when. Requires: hung().
  [[nodiscard]] Seconds hung_at(std::size_t device) const;
  /// Changes whenever it leaves or hangs.
  [[nodiscard]] std::uint32_t epoch(std::size_t device) const;
  /// Every rate is `factor` of the declared one from now on, for what has not begun.
  void slow(std::size_t device, double factor);
  void hang(std::size_t device);
  std::vector<Stream*> leave(std::size_t device);
  void join(std::size_t device);

  /// For how long a device's resources are still taken at declared rates, not counting what is under way.
  [[nodiscard]] DeviceState state(std::size_t device);
  /// The same as a stream of this priority meets it, counting what is under way.
  [[nodiscard]] DeviceState state_ahead_of(std::size_t device, const Priority& priority);
  [[nodiscard]] const Usage& usage(std::size_t device);

  /// Tells `observer` (null: nobody) of every use of a resource from now on. Devices are then simulated event by event,
  /// at the same times.
  void watch(ResourceObserver* observer);
  /// Asks for the memory of a device that will soon be given something.
  void prefetch(std::size_t device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::timing
