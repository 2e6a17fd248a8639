// Signals to descriptors of processes, which no other process can take over.
#include "commands/rank_processes.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cleave::app {

RankProcesses::RankProcesses(const comm::Transport& transport) {
  for (int rank = 0; rank < transport.size(); ++rank) descriptors_.push_back(transport.process(rank).descriptor);
}

bool RankProcesses::end(int rank) const {
  if (rank < 1 || rank >= static_cast<int>(descriptors_.size())) return false;
  const int descriptor = descriptors_[static_cast<std::size_t>(rank)];
  return descriptor >= 0 && ::syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, nullptr, 0) == 0;
}

}  // namespace cleave::app
