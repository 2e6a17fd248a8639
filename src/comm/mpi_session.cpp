// Start and end of MPI in a process, and its error texts.
#include <fmt/format.h>
#include <mpi.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"
#include "cleave/comm/mpi.hpp"
#include "first_rank.hpp"
#include "mpi_error.hpp"
#include "start_limit.hpp"

namespace cleave::comm {

void check_mpi(int code, const char* operation, std::string_view object, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw EnvironmentError(operation, std::string(object), std::string(text.data(), static_cast<std::size_t>(length)),
                         where);
}

bool is_peer_failure(int code) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_TRUNCATE || error_class == MPI_ERR_OTHER || error_class == MPI_ERR_INTERN ||
         error_class == MPI_ERR_UNKNOWN;
}

namespace {

// Hosts may have the same name, as containers do: but they were not booted together, or have networks of their own.
struct Host {
  std::array<char, 256> name{};
  std::array<char, 40> boot{};
  ino_t network = 0;
  bool operator==(const Host&) const = default;
};

Host this_host() {
  Host host;
  host_name().copy(host.name.data(), host.name.size() - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(host.boot.data(), host.boot.size());
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) == 0) host.network = network.st_ino;
  return host;
}

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv, Seconds start_limit)
    : exceptions_(std::uncaught_exceptions()), start_limit_(start_limit) {
  const StartLimit limit(start_limit, "MPI_Init_thread waits");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", "this process");
  if (provided < MPI_THREAD_FUNNELED) {
    throw EnvironmentError("MPI_Init_thread", "this process", "the library has no support for threads beside MPI");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "MPI_COMM_WORLD");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank", "MPI_COMM_WORLD");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size", "MPI_COMM_WORLD");
  find_host();
}

// Collective: all ranks.
void MpiSession::find_host() {
  const std::vector<Host> hosts = tell_first(this_host());
  std::vector<int> first(static_cast<std::size_t>(size_));  // rank of each one's host
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    first[i] = static_cast<int>(std::ranges::find(hosts, hosts[i]) - hosts.begin());
    host_names_.emplace_back(hosts[i].name.data());
  }
  first = hear_first(std::move(first));
  for (const int one : first) on_this_host_.push_back(one == first[static_cast<std::size_t>(rank_)]);
}

MpiSession::~MpiSession() {
  if (!finalized_ && std::uncaught_exceptions() == exceptions_) MPI_Finalize();
}

std::string MpiSession::host() const {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name", "this process");
  return {name.data(), static_cast<std::size_t>(length)};
}

std::string MpiSession::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string line(text.data(), static_cast<std::size_t>(length));
  return line.substr(0, line.find_first_of("\n,"));
}

void MpiSession::finalize() {
  if (finalized_) return;
  finalized_ = true;
  check_mpi(MPI_Finalize(), "MPI_Finalize", "this process");
}

void MpiSession::leave_now(int code) { _exit(code); }

void MpiSession::abort_all(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

bool launcher_keeps_survivors() {
  const char* value = std::getenv("OMPI_MCA_orte_enable_recovery");
  return value != nullptr && (std::string_view(value) == "1" || std::string_view(value) == "true");
}

}  // namespace cleave::comm
