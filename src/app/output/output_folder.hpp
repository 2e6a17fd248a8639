// Whether a folder can be the output of a run, or of a simulation.
#pragma once

#include <filesystem>
#include <string>

namespace cleave::app {

/// Errors: EnvironmentError where `folder`, the output.dir, is a file or lies below one. InputError of the input called
/// `input` where it has an input.yaml that is somebody's own: a run, or a simulation, would replace it.
void refuse_unfit_folder(const std::filesystem::path& folder, const std::string& input);

}  // namespace cleave::app
