// Calibration: what a survey of the ranks means for a run: what its devices can do together, and what will be slow.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/config/quantity.hpp"
#include "commands/rank_links.hpp"

namespace cleave::app {

/// Device ranks of one host that can compute at the same time: each on one core.
struct Workers {
  std::string name;
  int count = 1;
  FlopsPerSecond each;
  std::optional<BytesPerSecond> down, up;  ///< the slowest link's of that host; nothing where links were not measured
  Seconds latency;
};

struct Calibration {
  RankSurvey survey;
  std::vector<int> sharing;      ///< ranks that read the server's memory
  std::vector<Workers> workers;  ///< by host
  FlopsPerSecond devices;        ///< products of all device ranks together
  BytesPerSecond down, up;       ///< between the server and all ranks together: the slowest link's
  Seconds latency;
  std::vector<std::string> warnings;

  [[nodiscard]] bool shares(int rank) const;
};

/// `kernels`: the family that all ranks of a run would have to use; `sharing` as in Calibration. Requires: the server's
/// host is the first, and has its speed.
[[nodiscard]] Calibration summarize(RankSurvey survey, const std::string& kernels, std::vector<int> sharing);

/// Three digits: more would feign a precision that a measurement does not have.
template <class T>
std::string text_of(T quantity) {
  return config::to_text(T(std::stod(fmt::format("{:.3g}", static_cast<double>(quantity.value())))));
}

}  // namespace cleave::app
