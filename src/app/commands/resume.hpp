// Going on from a checkpoint: which one, whether it fits the input, and what is said about that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cleave/server/checkpointing.hpp"
#include "cleave/server/trainer.hpp"
#include "input/input.hpp"
#include "input/training_data.hpp"
#include "output/set_aside.hpp"

namespace cleave::app {

struct Resumed {
  Continuation how;
  server::RunState state;
};

/// Reads the checkpoint that `resume` names ("auto": the newest whole one of output.dir) into `parameters`; none where
/// auto finds none. What the user should know goes to `notices`.
///
/// Where the input leaves train.lr_decay_steps to train.steps, the checkpoint's stands: a run may be longer or shorter
/// than it was meant to be without other bits. `input` and `options` then say so.
/// Errors: InputError for a checkpoint that is damaged, of another model, or trained with other settings that bits
/// depend on, each named as "key old -> new"; the last is a notice where `with_changes`.
[[nodiscard]] std::optional<Resumed> resume_run(const std::string& resume, bool with_changes, Input& input,
                                                const TrainingData& data, server::TrainerOptions& options,
                                                server::ParameterStore& parameters, std::vector<std::string>& notices);

}  // namespace cleave::app
