// What a model of Hugging Face looks like from outside: its config.json, and the names that files give its tensors.
//
// import reads both, export writes config.json. Files come from strangers: everything in them is checked against what
// the family can express before memory is taken; what would change the numbers (another activation, scaled rotary
// angles, biases that the family lacks) is refused, what does not (dropout, token ids, generation) is passed over.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cleave/checkpoint/safetensors.hpp"
#include "cleave/model/config.hpp"

namespace cleave::app {

/// The configuration that a config.json of one of model::hub_families() states; seq_len is the longest sequence it
/// allows. Errors: InputError listing every fault by its key in `path`. Source: Hugging Face transformers, GPT2Config,
/// OPTConfig, LlamaConfig and their defaults.
[[nodiscard]] model::ModelConfig read_hub_config(const std::filesystem::path& path);

/// The config.json of a model, for transformers and for read_hub_config: seq_len is left out of it.
/// Requires: a family of model::hub_families().
[[nodiscard]] std::string hub_config_of(const model::ModelConfig& config);

/// Which tensor of a file holds each parameter, by the parameter's state-dict name. Files leave out the prefix
/// ("h.0.ln_1.weight" for "transformer.h.0.ln_1.weight"), keep buffers of old versions (attn.bias, inv_freq) and the
/// head beside the embedding it is tied to; shapes are compared, types are not.
/// Errors: InputError naming `file` and every parameter that is missing or of another shape, and every other tensor
/// that is left over.
[[nodiscard]] std::map<std::string, std::string> match_tensors(const model::ModelConfig& config,
                                                               const std::vector<checkpoint::SafetensorsInfo>& found,
                                                               const std::string& file);

}  // namespace cleave::app
