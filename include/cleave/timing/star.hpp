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

/// Is told what the resources of devices and the server's interface are used for. It changes no time.
class ResourceObserver {
 public:
  virtual ~ResourceObserver() = default;
  /// A panel of `stream` uses a resource from `start` to `end` and carries `bytes`. Called when the use begins.
  virtual void used(const Stream& stream, Resource resource, Seconds start, Seconds end, Bytes bytes) = 0;
};

/// See the file comment. A device is named by its index in `devices`.
class Star {
 public:
  /// `seed` is used for the jitter of messages only.
  Star(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, std::uint64_t seed = 0);
  Star(Star&&) noexcept;
  Star& operator=(Star&&) noexcept;
  ~Star();

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] Seconds now() const;
  /// A device's profile, whatever slow() did.
  [[nodiscard]] const fleet::DeviceProfile& declared(std::size_t device) const;

  /// Submits a stream now. Requires: the device is present; no panel of the stream was made; the caller keeps the
  /// stream in place until its answer, or until it is dropped or lost or has ended.
  void submit(std::size_t device, Stream& stream);
  /// Takes back a stream none of whose panels has begun. Returns false where one has; the stream is then still under
  /// way.
  bool drop(std::size_t device, Stream& stream);
  /// Ends the stay of the stream `id` (Stream::stays), whose data are not used any more. Returns the stream if that
  /// ends it now, and frees its memory. Null: there is no such stream, it was released before, or some of it is still
  /// coming down. Then it ends, and its memory is free, as its last panel comes: take_ended().
  Stream* release(std::size_t device, std::int64_t id);
  /// The streams that have ended since the last call because they were released while they came down.
  [[nodiscard]] std::vector<Stream*> take_ended();
  /// Takes so much of the device's memory from the streams, from now on; a negative value gives it back.
  void reserve(std::size_t device, Bytes bytes);
  /// Makes resources busy for so long from now. Requires: nothing was submitted to the device yet.
  void occupy(std::size_t device, Seconds down, Seconds compute, Seconds up);

  /// The key of the next event; kNever where nothing is under way.
  [[nodiscard]] EventKey next();
  /// Advances the time to the next event and carries it out. Returns the stream that it answers; null: it answers none.
  /// Requires: next() is not kNever.
  Stream* serve();
  /// Advances the time to `at`. Requires: next().at >= at.
  void move_to(Seconds at);
  /// Serves events up to `deadline` until one answers a stream, and returns that stream. Null: none did; the time is
  /// then `deadline`, if that is finite.
  Stream* next_answer(Seconds deadline = kNever.at);

  // Churn. A device that hangs answers nothing until it joins again. A device that leaves loses everything that it
  // holds.
  [[nodiscard]] bool present(std::size_t device) const;
  [[nodiscard]] bool hung(std::size_t device) const;
  /// The time at which the device hung. Requires: hung().
  [[nodiscard]] Seconds hung_at(std::size_t device) const;
  /// A number that changes whenever the device leaves or hangs.
  [[nodiscard]] std::uint32_t epoch(std::size_t device) const;
  /// Sets every rate to `factor` times the declared one, for panels that begin from now on.
  void slow(std::size_t device, double factor);
  void hang(std::size_t device);
  /// Returns the streams that are lost.
  std::vector<Stream*> leave(std::size_t device);
  /// The device is present again, with nothing, at the rates that it had: slow() holds until the next slow().
  void join(std::size_t device);

  /// The device's profile, and for how long each resource is still busy at declared rates with panels that have not
  /// begun.
  [[nodiscard]] DeviceState state(std::size_t device);
  /// The same as a stream of this priority would meet it: panels that it goes ahead of do not count, those under way
  /// do.
  [[nodiscard]] DeviceState state_ahead_of(std::size_t device, const Priority& priority);
  /// What the device has used until now. Of what is under way, the part that has gone by.
  [[nodiscard]] Usage usage(std::size_t device);

  /// Sets the observer (null: none) of every use of a resource from now on. Simulation is then slower; times are equal.
  void watch(ResourceObserver* observer);
  /// Prefetches a device's memory into the cache, before calls for it.
  void prefetch(std::size_t device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::timing
