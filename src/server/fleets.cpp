// Which fleet a run has, and the fleet that is the server itself.
#include <memory>

#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "executor.hpp"
#include "rank_fleet.hpp"
#include "rank_fleets.hpp"

namespace cleave::server {

std::string_view name_of(ClockMode clock) {
  switch (clock) {
    case ClockMode::virtual_time: return "virtual";
    case ClockMode::wall: return "wall";
    case ClockMode::off: return "off";
  }
  return "";
}

namespace {

using sched::Tasklet;

/// No devices: the simulated fleet keeps the time, the executor computes.
class LocalFleet final : public sched::ForwardingFleet<> {
 public:
  LocalFleet(Executor& executor, const fleet::ServerProfile& server, DType wire)
      : ForwardingFleet(model_), executor_(executor), model_({}, server, wire) {}

  void submit(const Tasklet& tasklet) override {
    executor_.compute(tasklet);
    model_.submit(tasklet);
  }
  void start(const model::Operation& kernel) override {
    executor_.run(kernel);
    model_.start(kernel);
  }
  void finish(OpId op) override { executor_.finish(op); }
  void retire(OpId op) override { executor_.retire(op); }

 private:
  Executor& executor_;
  sched::SimulatedFleet model_;
};

}  // namespace

std::unique_ptr<RankFleet> make_rank_fleet(comm::Transport& transport, Executor& executor, const sched::StepSpec& spec,
                                           const FleetTerms& terms) {
  executor.set_meanwhile([&transport] { transport.progress(); });  // operands travel while kernels run
  // In real time a device would be late that has all of its sums to make when their time is over.
  if (terms.clock != ClockMode::wall) executor.stages().sum_late();
  if (terms.clock == ClockMode::off) return make_live_fleet(transport, executor, spec, terms);
  return make_modelled_fleet(transport, executor, spec, terms);
}

std::unique_ptr<sched::Fleet> make_local_fleet(Executor& executor, const fleet::ServerProfile& server) {
  return std::make_unique<LocalFleet>(executor, server, executor.wire());
}

}  // namespace cleave::server
