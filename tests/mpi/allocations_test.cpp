// How often ranks ask the heap for memory in a training step once they have trained some: devices never, the server not
// for tasklets, messages and kernels. Two runs of this process that differ in their steps alone are compared, so that
// what begins and ends a run does not count; a first one fills what lasts as long as the process. Rank 0 prints and
// judges.
//
// The whole heap is counted, of all threads and libraries, Open MPI's too: malloc() and its kin are this file's.
#include <fmt/format.h>
#include <mpi.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cleave/comm/mpi.hpp"
#include "inprocess/run.hpp"

namespace {

std::atomic<std::int64_t> allocations{0};
void* counted(void* memory) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

}  // namespace

// The C library's own, under the names that it keeps for this.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) { return counted(__libc_malloc(bytes)); }
void* calloc(std::size_t count, std::size_t bytes) { return counted(__libc_calloc(count, bytes)); }
void* realloc(void* memory, std::size_t bytes) { return counted(__libc_realloc(memory, bytes)); }
void* memalign(std::size_t alignment, std::size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = counted(__libc_memalign(alignment, bytes));
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace {

using namespace cleave;

using testing_run::Setting;

constexpr std::int64_t kFewSteps = 4, kMoreSteps = 10;

struct Case {
  const char* name;
  Setting setting;
  bool shared_memory = true;
  double most = 10;  // of the server, a step: its report, and what is planned anew
};

Setting small_blocks(plan::Partition partition) {
  Setting s;
  s.model = {.family = "gpt2",
             .vocab_size = 256,
             .n_layer = 2,
             .n_head = 4,
             .n_kv_head = 4,
             .d_model = 128,
             .d_ff = 512,
             .seq_len = 128,
             .max_pos = 128};
  s.batch = 4;
  s.steps = kMoreSteps;
  s.partition = partition;
  s.clock = server::ClockMode::off;
  return s;
}
Setting in_groups(Setting s, std::int64_t groups) {
  s.row_groups = groups;
  return s;
}
Setting as_type(Setting s, DType wire) {
  s.wire = wire;
  return s;
}
Setting all_checked(Setting s) {
  s.verification.mode = server::VerifyMode::all;
  return s;
}

struct Run {
  std::int64_t allocations = 0, tasklets = 0;
};

// Collective.
Run train(const comm::MpiSession& mpi, const Case& which, const std::vector<data::Batch>& batches, std::size_t steps) {
  const std::int64_t before = allocations;
  Run run;
  const auto transport = comm::make_mpi_transport(mpi, {.shared_memory = which.shared_memory});
  if (transport->rank() > 0) {
    (void)device::run_device_host(*transport);
  } else {
    Setting setting = which.setting;
    setting.devices = testing_run::unlike_devices(transport->size() - 1);
    server::ParameterStore parameters = testing_run::initial_parameters(setting);
    server::Trainer trainer(parameters, testing_run::options_of(setting), transport.get());
    for (std::size_t step = 0; step < steps; ++step) {
      run.tasklets += trainer.step(static_cast<std::int64_t>(step), batches[step]).report.tasklets;
    }
    (void)trainer.say_goodbye(Seconds(10));
  }
  transport->close(Seconds(10));
  run.allocations = allocations - before;
  return run;
}

// Collective; true on the ranks that keep what is promised of them.
bool examine(const comm::MpiSession& mpi, const Case& which, const std::vector<data::Batch>& batches) {
  (void)train(mpi, which, batches, kFewSteps);
  const Run few = train(mpi, which, batches, kFewSteps), more = train(mpi, which, batches, kMoreSteps);
  constexpr double kSteps = kMoreSteps - kFewSteps;
  const double own = static_cast<double>(more.allocations - few.allocations) / kSteps;
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<double> all(static_cast<std::size_t>(size));
  MPI_Gather(&own, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (rank > 0) return true;
  bool good = all[0] <= which.most;
  fmt::print("{:<34} {:7.1f} tasklets a step, allocations a step: server {:7.1f} (at most {}), devices", which.name,
             static_cast<double>(more.tasklets - few.tasklets) / kSteps, all[0], which.most);
  for (std::size_t device = 1; device < all.size(); ++device) {
    fmt::print(" {:.1f}", all[device]);
    good = good && all[device] <= 2;  // memory that has never been this full, by chance
  }
  fmt::print("{}\n", good ? "" : "   TOO MANY");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  comm::MpiSession mpi(argc, argv);
  std::vector<data::Batch> batches;
  for (std::int64_t step = 0; step < kMoreSteps; ++step) {
    batches.push_back(testing_run::batch_of(small_blocks(plan::Partition::rows), step));
  }
  bool good = true;
  const Setting rows = small_blocks(plan::Partition::rows), automatic = small_blocks(plan::Partition::automatic);
  for (const Case& which : {
           Case{.name = "rows", .setting = rows},
           Case{.name = "rows, messages", .setting = rows, .shared_memory = false},
           Case{.name = "rows, messages, bf16", .setting = as_type(rows, DType::bf16), .shared_memory = false},
           Case{.name = "rows, all checked", .setting = all_checked(rows)},
           // The book of what row groups keep on devices is made for each step.
           Case{.name = "rows, two groups", .setting = in_groups(rows, 2), .most = 150},
           // Weight gradients are planned when they are ready, for the devices as they are then.
           Case{.name = "automatic", .setting = automatic, .most = 250},
           Case{.name = "automatic, two groups", .setting = in_groups(automatic, 2), .most = 400},
       }) {
    good = examine(mpi, which, batches) && good;
  }
  mpi.finalize();
  return good ? 0 : 1;
}
