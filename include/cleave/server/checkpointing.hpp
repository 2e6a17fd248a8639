// Between the trainer's state and checkpoint files: parameters, moments, counters and the model's configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/model/config.hpp"
#include "cleave/server/parameter_store.hpp"

namespace cleave::server {

/// The state of a run in a checkpoint, besides parameters and moments.
struct RunState {
  std::int64_t step = 0;   ///< updates done; the next one is number `step`
  std::uint64_t seed = 0;  ///< train.seed: parameters and batches
  std::string tokenizer;   ///< data::Tokenizer::to_text(); empty for token files and reference batches
  std::string settings{};  ///< other settings that the bits depend on, as text of the writer; empty: not stated
  std::string parts{};     ///< Trainer::part_record(); empty: not stated
};

/// The configuration under the attribute names of reference files.
[[nodiscard]] checkpoint::Attributes attributes_of(const model::ModelConfig& config);
/// The configuration that a checkpoint or reference file states.
/// Errors: InputError naming `file` for a missing or illegal attribute.
[[nodiscard]] model::ModelConfig config_from(const checkpoint::Attributes& attributes, const std::string& file);

/// Writes a checkpoint in one step. Frozen parameters have no moments in it. Collective: rank 0 only.
/// Errors: as checkpoint::write_snapshot().
void save_checkpoint(const std::filesystem::path& path, const ParameterStore& parameters,
                     const model::ModelConfig& config, const RunState& state);

/// Reads parameters and moments into `parameters`, and returns the run's state. Requires: `parameters` are those of
/// `config`.
/// Errors: InputError for a damaged file or one of another model, naming what differs.
RunState load_checkpoint(const std::filesystem::path& path, ParameterStore& parameters,
                         const model::ModelConfig& config);

/// Reads parameters alone, from a checkpoint or a reference file's /init.
/// Errors: as load_checkpoint.
void load_parameters(const std::filesystem::path& path, ParameterStore& parameters);

/// What of the model a checkpoint or reference file states otherwise though its tensors may have the same shapes, such
/// as its heads: in words, empty where there is nothing.
[[nodiscard]] std::string other_than(const model::ModelConfig& config, const checkpoint::Attributes& attributes);

}  // namespace cleave::server
