// The price of verification, for training steps of gpt2-124m (vocabulary 50257, 256 tokens, batch 4): processor time of
// the checks as a share of all processor time of server and devices, and the real time of a step beside that of one
// without checks. Rounds of all modes, one after the other, so that what else the host does weighs on all alike;
// medians over the rounds.
//
//   verify_cost [WIRE [DEVICES [LAYERS [ROUNDS [MODE]]]]]
//       WIRE: fp32 (default), bf16, fp16; 8 devices; 12 layers; 3 rounds; MODE: only that one beside none
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cleave/base/clock.hpp"
#include "inprocess/run.hpp"

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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Of one mode, a value for every round.
struct Price {
  std::vector<double> spent, checking, share, real;
  server::VerificationReport last;
};

constexpr int kSteps = 1;  // measured in a round, after one in which memory is taken and plans are made

void run_round(const testing_run::Setting& s, server::ParameterStore& parameters, Price& price) {
  comm::LoopbackHub hub(2);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::thread host(
      [endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] { (void)device::run_device_host(*endpoint); });
  {
    server::Trainer trainer(parameters, testing_run::options_of(s), server.get());
    (void)trainer.step(0, testing_run::batch_of(s, 0));
    const double processor = processor_seconds();
    const SteadyClock clock;
    const Seconds begun = clock.now();
    double checking = 0;
    for (int step = 1; step <= kSteps; ++step) {
      price.last = trainer.step(step, testing_run::batch_of(s, step)).verification;
      checking += price.last.time.value();
    }
    price.real.push_back((clock.now() - begun).value() / kSteps);
    const double spent = processor_seconds() - processor;
    price.spent.push_back(spent / kSteps);
    price.checking.push_back(checking / kSteps);
    price.share.push_back(100 * checking / spent);
    (void)trainer.say_goodbye(Seconds(10));
  }
  host.join();
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

  const int rounds = argc > 4 ? std::atoi(argv[4]) : 3;

  std::array<double, 1> load{};
  (void)getloadavg(load.data(), 1);
  fmt::print("gpt2-124m, {} layers, {} x {} tokens, {} devices, wire {}, {} rounds, load {:.1f} at the start\n",
             s.model.n_layer, s.batch, s.model.seq_len, s.devices.size(), wire, rounds, load[0]);
  const std::array<server::Verification, 4> modes{{{.mode = server::VerifyMode::off},
                                                   {.mode = server::VerifyMode::all},
                                                   {.mode = server::VerifyMode::sample, .fraction = 0.1},
                                                   {.mode = server::VerifyMode::audit, .fraction = 0.1}}};
  std::array<Price, modes.size()> prices;
  const std::string_view only = argc > 5 ? argv[5] : "";
  const auto is_wanted = [&](std::size_t i) {
    return i == 0 || only.empty() || only == server::name_of(modes[i].mode);
  };
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < modes.size(); ++i) {
      if (!is_wanted(i)) continue;
      s.verification = modes[i];
      s.verification.seed = 3;
      // Anew each time: weights that many such steps have driven apart make numbers so small that products with them
      // take many times as long. Made here, because it takes longer than a host waits.
      server::ParameterStore parameters = testing_run::initial_parameters(s);
      run_round(s, parameters, prices[i]);
      fmt::print(stderr, "round {}, {}: {:.2f} s, checking {:.1f} %\n", round, server::name_of(modes[i].mode),
                 prices[i].real.back(), prices[i].share.back());
    }
  }
  fmt::print(
      "| mode | blocks | checked | processor s of a step | of that checking | share | lowest to highest | real time of "
      "a "
      "step / without checks |\n|---|---|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (!is_wanted(i)) continue;
    const Price& price = prices[i];
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round) ratios.push_back(price.real[round] / prices[0].real[round]);
    const auto [low, high] = std::minmax_element(price.share.begin(), price.share.end());
    fmt::print("| {} | {} | {} | {:.2f} | {:.2f} | {:.1f} % | {:.1f} to {:.1f} % | {:.3f} |\n",
               server::name_of(modes[i].mode), price.last.blocks, price.last.checked, median(price.spent),
               median(price.checking), median(price.share), *low, *high, median(ratios));
  }
  return 0;
}
