// The price of verification: processor time of the checks as a share of all processor time of server and devices, for
// one training step of gpt2-124m (vocabulary 50257, 256 tokens, batch 4). Shared caches raise it: run it on an idle
// host.
//
//   verify_cost [WIRE [DEVICES [LAYERS]]]        WIRE: fp32 (default), bf16, fp16; 8 devices; 12 layers
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string_view>

#include "../tests/inprocess/run.hpp"

namespace {

using namespace cleave;

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wire = argc > 1 ? argv[1] : "fp32";
  testing_run::Setting s;
  s.model = *model::find_preset("gpt2-124m");
  s.model.seq_len = 256;
  if (argc > 3) s.model.n_layer = std::atoi(argv[3]);
  s.batch = 4;
  s.wire = wire == "bf16" ? DType::bf16 : wire == "fp16" ? DType::f16 : DType::f32;
  s.devices = testing_run::unlike_devices(argc > 2 ? std::atoi(argv[2]) : 8);
  for (fleet::DeviceProfile& device : s.devices) {
    device.compute = device.compute * 1000.0;
    device.downlink = device.downlink * 4.0;
    device.uplink = device.uplink * 4.0;
    device.memory = Bytes(std::int64_t{512} << 20);
  }
  kernels::select_gemm_kernels(kernels::best_gemm_kernels());

  fmt::print("gpt2-124m, {} layers, {} x {} tokens, {} devices, wire {}\n", s.model.n_layer, s.batch, s.model.seq_len,
             s.devices.size(), wire);
  fmt::print(
      "| mode | blocks | checked | processor s of a step | of that checking | share |\n|---|---|---|---|---|---|\n");
  for (const auto& [mode, fraction] : {std::pair{server::Verification::Mode::all, 1.0},
                                       {server::Verification::Mode::sample, 0.1},
                                       {server::Verification::Mode::audit, 0.1}}) {
    s.verification = {.mode = mode, .fraction = fraction, .seed = 3};
    server::ParameterStore parameters = testing_run::initial_parameters(s);  // takes longer than a host waits
    comm::LoopbackHub hub(2);
    const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
    std::thread host(
        [endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] { (void)device::run_device_host(*endpoint); });
    {
      server::Trainer trainer(parameters, testing_run::options_of(s), server.get());
      (void)trainer.step(0, testing_run::batch_of(s, 0));  // memory is taken, plans are made
      const double before = processor_seconds();
      const server::StepResult step = trainer.step(1, testing_run::batch_of(s, 1));
      const double spent = processor_seconds() - before, checking = step.verification.time.value();
      fmt::print("| {} | {} | {} | {:.2f} | {:.2f} | {:.1f} % |\n", server::name_of(mode), step.verification.blocks,
                 step.verification.checked, spent, checking, 100 * checking / spent);
      std::fflush(stdout);
      (void)trainer.say_goodbye(Seconds(10));
    }
    host.join();
  }
  return 0;
}
