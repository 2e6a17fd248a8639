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

class SimulatedFleet final : public Fleet {
 public:
  /// Operands travel as `wire`. `churn` is in order of time; `seed` feeds the jitter of messages only.
  SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                 fleet::ChurnTrace churn = {}, std::uint64_t seed = 0);
  ~SimulatedFleet() override;

  [[nodiscard]] Seconds now() const override;
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override;
  [[nodiscard]] std::vector<plan::DeviceState> devices_ahead_of(const Priority& priority) const override;
  [[nodiscard]] std::uint64_t roster() const override;
  void begin_step(const model::StepGraph& graph) override;
  void submit(const Tasklet& tasklet) override;
  void start(const model::Operation& kernel) override;
  void retire(OpId) override {}
  void forget(TaskletId tasklet) override;
  void release(TaskletId columns, DeviceId device) override;
  Event next_event(Seconds deadline) override;
  [[nodiscard]] std::span<const Usage> usage() const override;

  /// For how long the server's processor was taken since the fleet was made: kernels, and blocks of its own.
  [[nodiscard]] Seconds server_usage() const;

  /// A time before which there is no next event, for those who wait for it in real time: when something happens that
  /// may lead to one. Infinite where nothing will happen.
  [[nodiscard]] Seconds next_at() const;

  /// Tells `observer` (null: nobody) what happens from now on; it must outlive the fleet.
  void set_observer(Observer* observer);

  /// Takes a device out at once, as churn would: for fleets whose real device died.
  void remove_device(DeviceId device);
  /// Takes it up again, empty-handed; nothing happens if it is there.
  void return_device(DeviceId device);
  /// How `device` is to answer wrongly (churn kind `lie`), if it is.
  [[nodiscard]] std::optional<fleet::InjectedFaults> injected_faults(DeviceId device) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cleave::sched
