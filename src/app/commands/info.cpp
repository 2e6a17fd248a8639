// cleave info: what a checkpoint or reference file holds.
#include <fmt/format.h>

#include <cstdio>
#include <variant>

#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/checkpointing.hpp"
#include "commands/commands.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

std::string text_of(const checkpoint::Attribute& attribute) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); }, attribute);
}

}  // namespace

int info(const CommandLine& line) {
  const std::string& file = line.files.front();
  const checkpoint::Header header = checkpoint::read_header(file);
  const model::ModelConfig config = server::config_from(header.attributes, file);
  server::ParameterStore parameters(model::build_step(
      config, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}));
  server::load_parameters(file, parameters);
  if (line.hash) {
    std::printf("%016llx\n", static_cast<unsigned long long>(parameters.hash()));
    return 0;
  }
  const bool is_checkpoint = header.kind == checkpoint::FileKind::checkpoint;
  std::printf("%s: %s, format %lld%s, %s\n", file.c_str(), is_checkpoint ? "checkpoint" : "reference file",
              static_cast<long long>(header.format_version),
              is_checkpoint ? fmt::format(", cleave {}", header.cleave_version).c_str() : "",
              show(header.file_size).c_str());
  for (const auto& [name, value] : header.attributes) std::printf("  %-22s %s\n", name.c_str(), text_of(value).c_str());
  for (const auto& [name, value] : header.state)
    std::printf("  state.%-16s %s\n", name.c_str(), text_of(value).c_str());
  std::int64_t count = 0;
  for (const server::Parameter& p : parameters.parameters()) {
    std::printf("  %-48s %s\n", p.name.c_str(), checkpoint::to_string(p.shape()).c_str());
    count += p.rows * p.cols;
  }
  std::printf("  %lld parameters, hash %016llx\n", static_cast<long long>(count),
              static_cast<unsigned long long>(parameters.hash()));
  return 0;
}

}  // namespace cleave::app
