// Going on from a checkpoint: which one, whether it fits the input, and what is said about that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cleave/server/checkpointing.hpp"
#include "cleave/server/trainer.hpp"
#include "cli/command_line.hpp"
#include "input/input.hpp"
#include "input/training_data.hpp"
#include "output/folder_lock.hpp"
#include "output/set_aside.hpp"

namespace cleave::app {

struct Resumed {
  Continuation how;
  server::RunState state;
  std::optional<FolderLock> lock;  ///< of output.dir, since its newest checkpoint was chosen; of `auto` alone
};

/// Reads the checkpoint that --resume names ("auto": the newest whole one of output.dir) into `parameters`; none where
/// auto finds none. What the user should know goes to `notices`.
///
/// For `auto` the folder is locked first: a run that is about to end may save another checkpoint there, and delete an
/// older one. A dry run looks, and locks nothing.
///
/// Where the input leaves train.lr_decay_steps to train.steps, the checkpoint's stands: a run may be longer or shorter
/// than it was meant to be without other bits. `input` and `options` then say so.
/// Errors: InputError for a checkpoint that is damaged, of another model, or trained with other settings that bits
/// depend on, each named as "key old -> new"; the last is a notice with --resume-with-changes. Also for one of the
/// folder that bears the name of another step. EnvironmentError where another run writes in the folder.
[[nodiscard]] std::optional<Resumed> resume_run(const CommandLine& line, Input& input, const TrainingData& data,
                                                server::TrainerOptions& options, server::ParameterStore& parameters,
                                                std::vector<std::string>& notices);

}  // namespace cleave::app
