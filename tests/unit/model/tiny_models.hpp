// Small configurations, one for each family and form, that the tests of this component share.
#pragma once

#include <string>
#include <vector>

#include "cleave/model/config.hpp"
#include "cleave/model/family.hpp"

namespace cleave::model {

/// The shapes of the reference file gpt2_tiny.
inline ModelConfig tiny_gpt2() {
  ModelConfig c;
  c.family = "gpt2";
  c.vocab_size = 11;
  c.n_layer = 1;
  c.n_head = c.n_kv_head = 2;
  c.d_model = 8;
  c.d_ff = 32;
  c.seq_len = 5;
  c.max_pos = 8;
  return c;
}

/// The shapes of the reference file opt_tiny.
inline ModelConfig tiny_opt() {
  ModelConfig c = tiny_gpt2();
  c.family = "opt";
  return c;
}

/// The shapes of the reference file llama_tiny.
inline ModelConfig tiny_llama() {
  ModelConfig c = tiny_gpt2();
  c.family = "llama";
  c.n_head = 4;
  c.n_kv_head = 2;
  c.d_model = 16;
  c.d_ff = 20;
  c.max_pos = 5;
  c.tie_embeddings = false;
  return c;
}

struct NamedConfig {
  std::string name;
  ModelConfig config;
};

/// Every family, with one and two layers, tied and untied.
inline std::vector<NamedConfig> tiny_models() {
  std::vector<NamedConfig> all;
  for (const ModelConfig& base : {tiny_gpt2(), tiny_opt(), tiny_llama()}) {
    for (const std::int64_t layers : {1, 2}) {
      for (const bool tied : {false, true}) {
        ModelConfig c = base;
        c.n_layer = layers;
        c.tie_embeddings = tied;
        all.push_back({c.family + (tied ? " tied " : " untied ") + std::to_string(layers), c});
      }
    }
  }
  return all;
}

}  // namespace cleave::model
