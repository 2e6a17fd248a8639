// Each owner has a worker, from its first sequence until its sums are stored.
#include "stages/server_sums.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"

namespace cleave::server {

using pieces::StageWorker;
using sched::Errand;
using Status = StageWorker::Status;

void ServerSums::carry_out(const sched::Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  if (!item.slices) return;  // sums for a comparison only: StageCheck makes them when it compares
  const auto check = [&](Status status) {
    if (status == Status::diverged) throw CheckFailure("values are not finite: the training has diverged");
    CLEAVE_ASSERT(status == Status::ok, "the server cannot make sums of stage {}", tasklet.stage);
  };
  std::unique_ptr<StageWorker>& worker = workers_[item.owner];
  if (!worker) {
    worker = std::make_unique<StageWorker>(numbers_.table(), work_.parallel());
    check(numbers_.hold_slices(*worker, item.owner, tasklet.stage, *item.slices));
  }
  if (tasklet.errand == Errand::sum) return check(numbers_.add(*worker, item.owner, tasklet.stage, item.sequence));
  CLEAVE_ASSERT(tasklet.errand == Errand::send_sums, "the server only sums");
  check(numbers_.place_own(*worker, tasklet));
  workers_.erase(item.owner);
}

}  // namespace cleave::server
