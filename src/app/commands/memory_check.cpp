// Figures of /proc, and the refusal.
#include "commands/memory_check.hpp"

#include <fmt/format.h>

#include <fstream>
#include <string>

#include "input/run_setup.hpp"
#include "output/timeline.hpp"

namespace cleave::app {

namespace {

void refuse_if_too_large(const server::MemoryForecast& memory, const Input& input, std::int64_t seq) {
  const Bytes available = available_memory();
  if (memory.needed() <= available) return;
  throw fault_at(input, "train.batch",
                 fmt::format("a step of {} sequences of {} tokens does not fit this host: parameters and moments {}, "
                             "activations and gradients {}, partial sums {}, messages {}, and {} is free",
                             input.step.batch, seq, show(memory.parameters), show(memory.activations),
                             show(memory.sums), show(memory.messages), show(available)),
                 "a smaller batch, sequence or model");
}

}  // namespace

Bytes available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  std::int64_t kibibytes = 0;
  while (in >> name >> kibibytes) {
    std::getline(in, unit);
    if (name == "MemAvailable:") return Bytes(kibibytes * 1024);
  }
  return Bytes(std::int64_t{1} << 60);  // unknown: nothing is refused
}

server::MemoryForecast check_memory(const Input& input, const server::TrainerOptions& options,
                                    const server::DeviceRanks& ranks) {
  refuse_if_too_large(server::forecast_tensors(options), input,
                      options.model.seq_len);  // without planning what is hopeless
  server::MemoryForecast memory = server::forecast_memory(options, ranks);
  memory.records = Timeline::memory_of(std::ssize(options.devices), memory.tasklets * options.train.steps);
  refuse_if_too_large(memory, input, options.model.seq_len);
  return memory;
}

}  // namespace cleave::app
