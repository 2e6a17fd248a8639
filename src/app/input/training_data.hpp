// What a run trains on: from the `data` section of an input to batches, and the vocabulary that follows from it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/data/batches.hpp"
#include "input/input.hpp"

namespace cleave::app {

struct TrainingData {
  std::unique_ptr<data::BatchSource> batches;
  std::vector<data::Batch> validation;  ///< of one evaluation; empty: nothing to evaluate on
  std::string tokenizer;                ///< data::Tokenizer::to_text(); empty for token files and reference batches
  std::string summary;                  ///< one line for the log
  std::string not_evaluated;  ///< why there are no evaluations though the input asks for them; empty: there are
};

/// Errors: InputError, by the place of the key, where there is no such file. What is wrong within one, its reader says.
void require_file(const data::SourceEntry& entry, std::string_view key);

/// Reads the data and settles input.step.model.vocab_size where the input leaves it open.
/// Errors: InputError with every fault found (missing files, too little text, a vocabulary too small, ...).
[[nodiscard]] TrainingData load_training_data(Input& input);

}  // namespace cleave::app
