// RankProcesses: the processes of the device ranks of this host, for ending those that do not leave.
//
// Which process a rank is says the kernel (comm::PeerProcess), never the rank: what a message names is not touched.
#pragma once

#include <vector>

#include "cleave/comm/transport.hpp"

namespace cleave::app {

class RankProcesses {
 public:
  RankProcesses() = default;
  /// Those that the transport knows now.
  explicit RankProcesses(const comm::Transport& transport);

  /// Kills the process of a rank; false where it is not known, or has ended.
  bool end(int rank) const;

 private:
  std::vector<int> descriptors_;  // by rank
};

}  // namespace cleave::app
