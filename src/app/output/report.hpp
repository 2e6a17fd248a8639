// report.html: one page that shows what happened in one run, or in several beside each other (docs/report.md).
//
// Everything is read from the files of the run folders, so that a report can be made of any run at any time.
#pragma once

#include <filesystem>
#include <vector>

namespace cleave::app {

/// Writes the report of `runs` (folders of train or simulate) to `file`. Self-contained: loads nothing when opened.
/// Errors: InputError when a folder holds no run; EnvironmentError.
void write_report(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& file);

}  // namespace cleave::app
