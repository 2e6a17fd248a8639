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

#include "cleave/base/random.hpp"
#include "cleave/comm/mpi.hpp"
#include "cleave/device/host.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/trainer.hpp"

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

constexpr std::int64_t kBatch = 4, kFewSteps = 4, kMoreSteps = 10;
const model::ModelConfig kModel{.family = "gpt2",
                                .vocab_size = 256,
                                .n_layer = 2,
                                .n_head = 4,
                                .n_kv_head = 4,
                                .d_model = 128,
                                .d_ff = 512,
                                .seq_len = 128,
                                .max_pos = 128};

struct Case {
  const char* name;
  bool shared_memory = true;
  std::int64_t row_groups = 1;
  plan::Partition partition = plan::Partition::automatic;
  DType wire = DType::f32;
  server::Verification::Mode verification = server::Verification::Mode::off;
  double most = 10;  // of the server, a step: its report, and what is planned anew
};

data::Batch batch_of(std::int64_t step) {
  data::Batch batch{.rows = kBatch, .seq = kModel.seq_len, .tokens = {}, .targets = {}};
  const Random random(7, Purpose::test, static_cast<std::uint32_t>(step));
  for (std::int64_t i = 0; i < kBatch * kModel.seq_len; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(i), 256)));
    batch.targets.push_back((batch.tokens.back() * 7 + 3) % 256);
  }
  return batch;
}

server::TrainerOptions options_of(const Case& which, int devices) {
  server::TrainerOptions options;
  options.model = kModel;
  options.train = {.steps = kMoreSteps, .batch = kBatch, .warmup_steps = 1, .lr_decay_steps = kMoreSteps, .freeze = {}};
  options.row_groups = which.row_groups;
  options.plan.partition = which.partition;
  options.executor.wire = which.wire;
  options.fleet.wire = which.wire;
  options.executor.verification.mode = which.verification;
  options.fleet.clock = server::ClockMode::off;
  options.fleet.gemm_kernels = kernels::name_of(kernels::selected_gemm_kernels());
  for (int i = 0; i < devices; ++i) {
    options.devices.push_back({.id = DeviceId(i),
                               .name = "core",
                               .compute = FlopsPerSecond(100e9),
                               .memory = Bytes(std::int64_t{4} << 30),
                               .downlink = BytesPerSecond(5e9),
                               .uplink = BytesPerSecond(5e9),
                               .latency = Seconds(2e-5),
                               .jitter = Seconds(0)});
  }
  return options;
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
    server::ParameterStore parameters(
        model::build_step(kModel,
                          {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}),
        11);
    server::Trainer trainer(parameters, options_of(which, transport->size() - 1), transport.get());
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
  for (std::int64_t step = 0; step < kMoreSteps; ++step) batches.push_back(batch_of(step));
  using Mode = server::Verification::Mode;
  bool good = true;
  const auto rows = plan::Partition::rows;
  for (const Case& which : {
           Case{.name = "rows", .partition = rows},
           Case{.name = "rows, messages", .shared_memory = false, .partition = rows},
           Case{.name = "rows, messages, bf16", .shared_memory = false, .partition = rows, .wire = DType::bf16},
           // The book of what row groups keep on devices is made for each step.
           Case{.name = "rows, two groups", .row_groups = 2, .partition = rows, .most = 150},
           Case{.name = "rows, all checked", .partition = rows, .verification = Mode::all},
           // Weight gradients are planned when they are ready, for the devices as they are then.
           Case{.name = "automatic", .most = 250},
           Case{.name = "automatic, two groups", .row_groups = 2, .most = 400},
       }) {
    good = examine(mpi, which, batches) && good;
  }
  mpi.finalize();
  return good ? 0 : 1;
}
