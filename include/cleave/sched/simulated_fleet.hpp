// SimulatedFleet: a fleet in virtual time, without numbers: the star of devices of the time model, and churn.
//
// Times are those of cleave/timing/star.hpp; the server's processor is one more serial resource. The server's real
// fleets carry this model too, so that `train` with a virtual clock reports what `simulate` says.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/observer.hpp"

namespace cleave::sched {

/// See the file comment. Deterministic.
class SimulatedFleet final : public Fleet {
 public:
  /// Operands travel as `wire`. `seed` is used for the jitter of messages only. Requires: `churn` is in order of time;
  /// devices have the ids 0, 1, ... in order.
  SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                 fleet::ChurnTrace churn = {}, std::uint64_t seed = 0);
  ~SimulatedFleet() override;

  [[nodiscard]] Seconds now() const override;
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override;
  [[nodiscard]] std::vector<plan::DeviceState> devices_ahead_of(const Priority& priority) const override;
  [[nodiscard]] std::vector<fleet::DeviceProfile> all_devices() const override;
  [[nodiscard]] std::uint64_t roster() const override;
  void begin_step(const model::StepGraph& graph) override;
  void submit(const Tasklet& tasklet) override;
  void start(const model::Operation& kernel) override;
  void retire(OpId) override {}
  void forget(TaskletId tasklet) override;
  void release(TaskletId columns, DeviceId device) override;
  Event next_event(Seconds deadline) override;
  [[nodiscard]] std::span<const Usage> usage() const override;

  /// Busy time of the server's processor since the fleet was made: kernels, and tasklets of kServerDevice.
  [[nodiscard]] Seconds server_usage() const;

  /// A lower bound of the time of the next event, for callers that wait for it in real time. Infinite where there will
  /// be none.
  [[nodiscard]] Seconds next_at() const;

  /// Sets the observer (null: none). Requires: it outlives the fleet.
  void set_observer(Observer* observer);

  /// Makes a device leave now, as churn would: for fleets whose real device died.
  void remove_device(DeviceId device);
  /// Makes a device join now, with nothing; it has no effect on a device that is present.
  void return_device(DeviceId device);
  /// The wrong results that a device is to return now (churn kind `lie`); none for an honest device.
  [[nodiscard]] std::optional<fleet::InjectedFaults> injected_faults(DeviceId device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::sched
