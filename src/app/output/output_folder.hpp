// Whether a folder can be the output of a run, or of a simulation.
#pragma once

#include <filesystem>

#include "input/input.hpp"

namespace cleave::app {

/// Errors: EnvironmentError where `folder`, the output.dir of `input`, is a file or lies below one, or where a pipe has
/// the name of a file of a run. InputError where it has an input.yaml that is somebody's own: a run, or a simulation,
/// would replace it.
void refuse_unfit_folder(const std::filesystem::path& folder, const Input& input);

}  // namespace cleave::app
