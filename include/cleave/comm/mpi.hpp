// MPI behind our own types: from its start to its end in a process, and the transport between ranks.
//
// Only comm and app know MPI. A run starts by messages between rank 0 and each other rank (src/comm/first_rank.hpp); on
// one host a communicator is duplicated (collective) as well. From then on everything is point to point, so that a rank
// may die without the others noticing more than its silence. On one host that goes through MPI's shared memory. Open
// MPI 4.1's own TCP can lock up or abort when a rank dies in the middle of a large transfer: ranks of several hosts
// have connections of their own (src/comm/stream_transport.hpp), and use MPI no more once they are there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::comm {

/// How long ranks wait for each other at start; they need not all be started in the same minute.
inline constexpr Seconds kStartLimit{300};

/// MPI from MPI_Init_thread (funneled: one thread per rank calls MPI) to the end of the process.
class MpiSession {
 public:
  /// Where the ranks do not find each other within the limit, here or in make_mpi_transport(), the process says so on
  /// its standard error and ends with ExitCode::environment: MPI itself would wait for ever for a rank that ended in
  /// MPI_Init_thread. Collective: all ranks. Errors: EnvironmentError.
  MpiSession(int& argc, char**& argv, Seconds start_limit = kStartLimit);
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  /// Finalizes if that was not done and no exception is under way; never throws.
  ~MpiSession();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] Seconds start_limit() const { return start_limit_; }
  [[nodiscard]] std::string host() const;
  /// For each rank, whether it runs on the host of this rank.
  [[nodiscard]] const std::vector<bool>& on_this_host() const { return on_this_host_; }
  /// On rank 0, the name of each rank's host; empty elsewhere.
  [[nodiscard]] const std::vector<std::string>& host_names() const { return host_names_; }
  /// The library's own version line.
  [[nodiscard]] static std::string version();

  /// Ends MPI when every rank is alive and comes here. Collective: all ranks. Errors: EnvironmentError.
  void finalize();
  /// Leaves without MPI_Finalize, which can hang once a rank has died: when every living rank leaves so, device ranks
  /// after their farewell and the server last, mpirun returns 0 (given --enable-recovery). Runs no destructors.
  [[noreturn]] static void leave_now(int code);
  /// Ends all ranks at once with this code.
  [[noreturn]] static void abort_all(int code);

 private:
  int rank_ = 0, size_ = 1, exceptions_ = 0;
  Seconds start_limit_;
  std::vector<bool> on_this_host_;
  std::vector<std::string> host_names_;
  bool finalized_ = false;

  void find_host();
};

/// Options of a transport. Those of rank 0 hold for all ranks.
struct MpiTransportOptions {
  /// Large frames between rank 0 and ranks of its host are read in place instead of being copied, where the system lets
  /// processes map each other's memory.
  bool shared_memory = true;
  /// Where rank 0 listens for ranks of other hosts: an IPv4 address in digits (address_of_interface()). Empty: the
  /// address by which it reaches those hosts; where there is none, all of its addresses.
  std::string interface {};
  /// Use TCP connections even where all ranks are on one host, as over several hosts.
  bool streams = false;
};

/// The IPv4 address of a network interface of this host, in digits; nothing where there is no such interface, or it has
/// none. An address of this host stands for itself.
[[nodiscard]] std::optional<std::string> address_of_interface(const std::string& name);

/// The transport between the ranks of MPI_COMM_WORLD; over several hosts between rank 0 and each other rank only.
/// Collective: all ranks. Errors: EnvironmentError.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const MpiSession& session,
                                                            const MpiTransportOptions& options = {});

/// True when the launcher of this process has been told to keep the other ranks when one dies
/// (mpirun --enable-recovery, or OMPI_MCA_orte_enable_recovery=1).
[[nodiscard]] bool launcher_keeps_survivors();

}  // namespace cleave::comm
