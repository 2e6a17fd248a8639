// The codec: a task written, sealed with the checksum of its numbers, and read back, beside the bytes it has.
//
//   build/release/bench/codec_bench
//
// Operands of a 256 x 256 x k product. Each task that is read is held against the one that was written.
#include <benchmark/benchmark.h>

#include <cstring>

#include "cleave/comm/message.hpp"

namespace {

using namespace cleave;

comm::Header task_of(std::int64_t k, DType wire) {
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = TaskletId(7);
  header.device = DeviceId(3);
  header.op = OpId(1);
  header.work = comm::Work::gemm;
  header.wire = header.output = wire;
  header.panels = 1;
  header.gemm = {256, 256, k, 1, 0};
  return header;
}

void codec(benchmark::State& state) {
  const comm::Header header = task_of(state.range(0), state.range(1) == 0 ? DType::f32 : DType::bf16);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    comm::TaskDraft draft = comm::begin_task(header);
    for (const auto& operand : draft.operands) std::memset(operand.data(), 1, operand.size());
    const comm::Frame frame = comm::seal(std::move(draft));
    const auto task = comm::decode_task(frame);
    if (!task || task->header.gemm.k != header.gemm.k || task->operands[1].back() != std::byte{1}) {
      state.SkipWithError("a wrong task");
      break;
    }
    bytes += frame.size();
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(codec)->ArgNames({"k", "bf16"})->ArgsProduct({{8, 256, 768}, {0, 1}});

}  // namespace

BENCHMARK_MAIN();
