// Writes small valid inputs for the fuzzers to start from, in today's formats.
//
//   fuzz_seeds FOLDER      FOLDER/message/..., FOLDER/safetensors/..., FOLDER/checkpoint/...
#include <cstdio>
#include <fstream>
#include <string>

#include "cleave/checkpoint/safetensors.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/message.hpp"
#include "support/task_header.hpp"

namespace {

using namespace cleave;
namespace fs = std::filesystem;

void store(const fs::path& file, const comm::Frame& frame) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(frame.data()), static_cast<std::streamsize>(frame.size()));
}

comm::Header task_of(comm::Work work, DType wire) {
  comm::Header h = testing_support::task_header(work, wire);
  if (work == comm::Work::gemm) {
    h.gemm = {2, 3, 4, 1, 0};
  } else {
    h.attention = {1, 2, 4, 2};
  }
  return h;
}

void store_messages(const fs::path& folder) {
  store(folder / "hello", comm::encode(comm::Hello{.pid = 12, .host = "host", .version = "0.1.0"}));
  comm::Welcome welcome;
  welcome.gemm_kernels = "skx";
  welcome.devices = {{DeviceId(0), Bytes(1 << 29)}};
  store(folder / "welcome", comm::encode(welcome));
  store(folder / "ping", comm::encode_ping(5));
  store(folder / "goodbye", comm::encode_goodbye());
  store(folder / "refusal", comm::encode_refusal("no such kernels"));
  store(folder / "refused", comm::encode_refused(TaskletId(7), DeviceId(3), comm::Reason::memory, "too large"));
  for (const DType wire : {DType::f32, DType::bf16}) {
    for (const comm::Work work : {comm::Work::gemm, comm::Work::attention_forward, comm::Work::attention_backward}) {
      const comm::Header header = task_of(work, wire);
      const std::string name = std::to_string(static_cast<int>(work)) + "-" + std::string(cleave::name_of(wire));
      store(folder / ("task-" + name), comm::seal(comm::begin_task(header)));
      store(folder / ("result-" + name), comm::seal(comm::begin_result(comm::result_header(header))));
    }
  }
  comm::Header partial = task_of(comm::Work::gemm, DType::f32);
  partial.gemm = {2, 3, kBlockK, 4, 1};
  partial.output = partial_sum_type(DType::f32);
  partial.panels = 2;
  store(folder / "task-partial", comm::seal(comm::begin_task(partial)));
  for (const std::int64_t first : {0, 1}) {
    // A panel and what it is answered by.
    const auto store_panel = [&](const std::string& name, comm::PartOf of, comm::Header task) {
      task.part = {.of = of, .first = first, .count = 1};
      store(folder / (name + "-" + std::to_string(first)), comm::seal(comm::begin_task(task)));
      store(folder / (name + "-result-" + std::to_string(first)),
            comm::seal(comm::begin_result(comm::result_header(task))));
    };
    store_panel("panel", comm::PartOf::rows, task_of(comm::Work::gemm, DType::bf16));
    comm::Header depth = task_of(comm::Work::gemm, DType::bf16);
    depth.gemm = {2, 3, kBlockK + 4, 2, 0};
    depth.a_by_columns = true;
    store_panel("depth", comm::PartOf::k_blocks, depth);
    comm::Header pairs = task_of(comm::Work::attention_backward, DType::bf16);
    pairs.attention.pairs = 2;
    store_panel("pairs", comm::PartOf::pairs, pairs);
  }
  comm::Header bring = task_of(comm::Work::gemm, DType::bf16);
  bring.gemm.m = 0;
  bring.columns = comm::Columns::bring;
  store(folder / "columns-bring", comm::seal(comm::begin_task(bring)));
  comm::Header beside = task_of(comm::Work::gemm, DType::bf16);
  beside.columns = comm::Columns::kept;
  beside.brought_by = TaskletId(6);
  store(folder / "columns-kept", comm::seal(comm::begin_task(beside)));
  for (const comm::StageErrand errand : {comm::StageErrand::begin, comm::StageErrand::hold, comm::StageErrand::sum}) {
    comm::Header stage = task_of(comm::Work::attention_forward, DType::f32);
    stage.work = comm::Work::stage;
    stage.attention = {};
    stage.stage_task = {.errand = errand, .stage = 1, .owner = 0, .sequence = 2, .row = 128, .rows = 64};
    const std::string name = "stage-" + std::to_string(static_cast<int>(errand));
    if (errand != comm::StageErrand::begin) stage.stage_task.operand_bytes = 24;
    store(folder / name, comm::seal(comm::begin_task(stage)));
    if (!stage.stage_task.answered()) continue;
    stage.stage_task.result_bytes = 8;
    store(folder / (name + "-result"), comm::seal(comm::begin_result(comm::result_header(stage))));
  }
  store(folder / "columns-release", comm::encode_release(TaskletId(6), DeviceId(3)));
}

void store_files(const fs::path& folder) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::vector<checkpoint::TensorView> tensors{{"w", {2, 3}, values}, {"b", {3}, std::span(values).first(3)}};
  fs::create_directories(folder / "safetensors");
  fs::create_directories(folder / "checkpoint");
  checkpoint::write_safetensors(folder / "safetensors" / "f32", tensors, DType::f32, {{"format", "pt"}});
  checkpoint::write_safetensors(folder / "safetensors" / "bf16", tensors, DType::bf16);
  checkpoint::SnapshotView snapshot;
  snapshot.attributes = {{"family", std::string("gpt2")}, {"n_layer", std::int64_t{2}}, {"norm_eps", 1e-5}};
  snapshot.state = {{"step", std::int64_t{3}}};
  snapshot.model = tensors;
  snapshot.exp_avg = snapshot.exp_avg_sq = {tensors[0]};
  checkpoint::write_snapshot(folder / "checkpoint" / "small", snapshot);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  store_messages(fs::path(argv[1]) / "message");
  store_files(argv[1]);
  return 0;
}
