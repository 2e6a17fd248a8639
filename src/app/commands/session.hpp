// Session: this process's place among the ranks of a run, with or without mpirun.
//
// Under a launcher every rank makes one; rank 0 becomes the server and the others serve devices until they are told to
// leave. Without a launcher the process is rank 0 and hosts the devices itself, on a thread behind a loopback
// transport.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/comm/mpi.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/server/fleets.hpp"

namespace cleave::app {

/// The rank that the launcher gave this process, known before MPI starts; 0 without a launcher.
[[nodiscard]] int launcher_rank();

/// True where mpirun started this process; false for other launchers, such as srun.
[[nodiscard]] bool under_mpirun();

/// True where the launcher says that no rank of this host comes before this one, or says nothing.
[[nodiscard]] bool is_first_on_its_host();

/// To be called before a rank returns an exit code that the first rank returns too. mpirun ends every process when one
/// of them fails, and what others wrote just before can be lost: the rank that tells the user why must be the one that
/// leaves first. The others wait to be ended, for a while. No wait where the launcher leaves survivors alone.
void let_first_rank_leave();

class Session {
 public:
  /// Starts MPI where a launcher started this process; CLEAVE_START_LIMIT in its environment is how many seconds ranks
  /// wait for each other. Collective: all ranks. Errors: EnvironmentError.
  Session(int argc, char** argv);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const { return mpi_ ? mpi_->rank() : 0; }
  /// Ranks of the run, the server included.
  [[nodiscard]] int size() const { return mpi_ ? mpi_->size() : 1; }
  [[nodiscard]] bool is_server() const { return rank() == 0; }
  /// The name of this rank's host; empty without a launcher.
  [[nodiscard]] std::string host() const { return mpi_ ? mpi_->host() : std::string(); }

  /// Of each device rank, rank 1 first, whether it is on the host of this one; there is always at least one. Without a
  /// launcher device ranks are threads of this process, which are sent everything.
  [[nodiscard]] std::vector<bool> devices_on_this_host() const;

  /// The server's word on whether the run, or its next part, starts (0) or ends with this exit code; returns it on
  /// every rank. Each part has a transport of its own, as the server's `options` have it. Collective: all ranks.
  [[nodiscard]] int share_start_code(int code, const comm::MpiTransportOptions& options);

  /// Where the server reaches device ranks; there is always at least one. Without a launcher each call starts a new
  /// host. Collective: server.
  [[nodiscard]] comm::Transport& devices();

  /// On a device rank: serves until the server says goodbye; returns the exit code. A rank that the server left without
  /// a word leaves the process.
  [[nodiscard]] int serve();

  /// Where a part of the run ended before a trainer could say goodbye: the server says it, so that device ranks neither
  /// wait for it in vain nor keep it from its end.
  void dismiss();

  /// Ends the run: MPI is finalized if every rank said farewell. Otherwise those of the `missing` that still run on
  /// this host (stopped, say) are killed, so that the launcher does not wait for them, and the process leaves with
  /// `code`.
  /// A rank that dies or is stopped after its farewell makes MPI_Finalize hang: after a while the same is done then,
  /// and also where the process `ends` and hangs in that.
  enum class AfterMpi { ends, goes_on };
  void finish(const std::vector<server::RankInfo>& missing, int code, AfterMpi after = AfterMpi::ends);

 private:
  std::optional<comm::MpiSession> mpi_;
  std::unique_ptr<comm::Transport> transport_;
  std::thread host_;

  void end_host();
};

}  // namespace cleave::app
