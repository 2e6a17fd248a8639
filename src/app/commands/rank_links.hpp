// The ranks of a calibration: which hosts they are on, what each host can do, and the way from the server to each rank.
//
// The server asks, device ranks answer in answer_until_told(). Every host is measured by its first rank, one host after
// the other, and so are links: ranks of one host share its cores and its interface. Rates are the best of several
// trials; latency is a median.
#pragma once

#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"
#include "commands/host_speed.hpp"

namespace cleave::app {

/// A host of the run, as the first of its ranks tells.
struct RunHost {
  std::string name, processor;
  std::string kernels;                 ///< the fastest that its processor can run
  std::vector<std::string> supported;  ///< all that it can run
  std::vector<int> ranks;
  HostSpeed speed;
};

/// Who is measuring, with what it knows of itself.
[[nodiscard]] RunHost describe_this_host(std::string name);

struct RankLink {
  int rank = 0;
  std::string host;
  Seconds latency;                ///< one way: half the median round trip of an empty message
  BytesPerSecond down, up, both;  ///< towards the rank; back; each of the two while both are in use
};

struct RankSurvey {
  std::vector<RunHost> hosts;   ///< the server's first
  std::vector<RankLink> links;  ///< by rank, without rank 0
};

/// Asks and measures, through the transport that a run uses (without shared memory, in which there is no way to
/// measure), then lets the ranks go. Errors: EnvironmentError where a rank does not answer. Collective: the server,
/// others in answer_until_told().
[[nodiscard]] RankSurvey survey_ranks(comm::Transport& transport, RunHost own);

/// On a device rank: answers the server until told to end, or until it is gone or silent for some minutes.
void answer_until_told(comm::Transport& transport, const std::string& host);

}  // namespace cleave::app
