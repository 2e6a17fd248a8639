// SimulatedFleet: the time model of docs/cost_model.md as a discrete-event simulation in virtual time, without numbers.
//
// Resources: per device a downlink, a processor and an uplink; the server's interface out and in; the server's
// processor for kernels. Each is serial and serves in order of request. A message down holds the interface and the link
// (cut through): both start when both are asked for it, it is through when the slower has carried it, and arrives one
// latency later. Also the time model inside the server's real fleets, so that `train` with a virtual clock reports what
// `simulate` says.
#pragma once

#include <map>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

/// A resource that does one thing at a time, in order of request.
class SerialResource {
 public:
  /// Takes the resource for `duration` from `earliest` or when it is free, whichever is later; returns the start.
  Seconds reserve(Seconds earliest, Seconds duration);
  [[nodiscard]] Seconds free_at() const { return free_at_; }
  [[nodiscard]] Seconds busy() const { return busy_; }
  void clear(Seconds now) { free_at_ = now; }

 private:
  Seconds free_at_{0}, busy_{0};
};

class SimulatedFleet final : public Fleet {
 public:
  /// `seed` feeds the jitter of messages only.
  SimulatedFleet(std::vector<fleet::DeviceProfile> devices, fleet::ServerProfile server, DType wire,
                 fleet::ChurnTrace churn = {}, std::uint64_t seed = 0);
  ~SimulatedFleet() override;

  [[nodiscard]] Seconds now() const override { return now_; }
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override;
  void begin_step(const model::StepGraph& graph) override;
  void submit(const Tasklet& tasklet) override;
  void start(const model::Operation& kernel) override;
  void forget(TaskletId tasklet) override;
  Event next_event(Seconds deadline) override;
  [[nodiscard]] std::span<const Usage> usage() const override { return usage_; }

  /// Bytes that the server's interface carried in each direction since the fleet was made.
  [[nodiscard]] Bytes server_out() const { return server_out_; }
  [[nodiscard]] Bytes server_in() const { return server_in_; }

 private:
  struct Device;
  struct Flight;
  struct Step;
  void push(Seconds at, int kind, std::int64_t a, std::int64_t b = 0);
  void apply_churn(const fleet::ChurnEvent& event);
  void advance_panel(Flight& flight);
  Seconds latency_of(const Device& device);

  std::vector<Device> devices_;
  fleet::ServerProfile server_;
  DType wire_;
  fleet::ChurnTrace churn_;
  std::size_t next_churn_ = 0;
  std::uint64_t seed_;
  std::uint64_t messages_ = 0;
  Seconds now_{0};
  SerialResource nic_out_, nic_in_, processor_;
  const model::StepGraph* graph_ = nullptr;
  std::unordered_map<std::int64_t, Flight> flights_;
  std::priority_queue<Step, std::vector<Step>, std::greater<>> agenda_;
  std::int64_t sequence_ = 0;
  std::vector<Event> pending_;
  std::vector<Usage> usage_;
  Bytes server_out_, server_in_;
};

}  // namespace cleave::sched
