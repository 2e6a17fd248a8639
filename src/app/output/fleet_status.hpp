// FleetStatus: how the fleet is right now, for progress lines: who is there, who is slow, which resource is busiest.
//
// It listens to a fleet (sched::Observer) and passes everything on to another listener, the run's timeline.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/sched/observer.hpp"
#include "cleave/telemetry/progress.hpp"

namespace cleave::app {

class FleetStatus final : public sched::Observer {
 public:
  /// `next` may be null, and must outlive this; without it, devices and operations are counted, not busy times.
  FleetStatus(const std::vector<fleet::DeviceProfile>& devices, sched::Observer* next);

  /// Called at the first use of every further operation: how many of the step's operations have begun, and how many
  /// there are.
  void on_operation(std::function<void(std::size_t begun, std::size_t all)> told) { told_ = std::move(told); }

  /// `8 up` or `5 up, 2 away, 1 slow`: of the devices that the input declares.
  [[nodiscard]] std::string devices() const;
  /// What was taken longest since the last call, and for which share of the fleet's time: `uplink of phone 3, 57 %`.
  [[nodiscard]] std::string busiest();

  void begin(const model::StepGraph& graph, Seconds at) override;
  [[nodiscard]] bool wants_spans() const override { return next_ != nullptr && next_->wants_spans(); }
  void span(const sched::Span& span) override;
  void submitted(const sched::Tasklet& tasklet) override;
  void settled(TaskletId tasklet, Seconds at, bool lost) override;
  void changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor) override;

 private:
  void begun(OpId op);
  struct Device {
    std::string name;
    bool away = false, slow = false;
    std::array<double, 3> busy{};  // downlink, processor, uplink
  };
  [[nodiscard]] bool known(DeviceId id) const {
    return id.value >= 0 && id.value < static_cast<std::int64_t>(devices_.size());
  }

  std::vector<Device> devices_;
  std::array<double, 3> server_{};  // interface out, interface in, kernels
  sched::Observer* next_;
  std::function<void(std::size_t, std::size_t)> told_{};
  std::vector<bool> begun_{};
  std::size_t begun_count_ = 0;
  double from_ = -1, until_ = 0;
};

/// For plan and simulate, which usually end before anybody looks: nothing in the first seconds.
[[nodiscard]] telemetry::ProgressSettings progress_of_short_work(bool quiet);

}  // namespace cleave::app
