// What the files of a run are called, but for its checkpoints (cleave/checkpoint/folder.hpp).
#pragma once

#include <array>
#include <string_view>

namespace cleave::app {

/// Those that the page of a run is made of.
inline constexpr std::array<std::string_view, 7> kRecordsOfRun{"input.yaml",       "metrics.jsonl", "layout.json",
                                                               "timeline.json",    "simulate.json", "profile.json",
                                                               "verification.json"};

/// The others that train, simulate and report write.
inline constexpr std::array<std::string_view, 7> kOtherFilesOfRun{
    "lock", "log.txt", "ranks.json", "report.html", "trace.json", "taken_back.jsonl", "verdict.json"};

}  // namespace cleave::app
