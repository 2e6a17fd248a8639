// MPI where there is a launcher, loopback where there is none.
#include "commands/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "cleave/base/clock.hpp"
#include "cleave/comm/loopback.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/start.hpp"
#include "cleave/device/host.hpp"
#include "cli/signals.hpp"
#include "commands/rank_processes.hpp"

namespace cleave::app {

namespace {

/// How long the last sends may take when a rank leaves.
constexpr Seconds kLastSends{5.0};
/// How often the server looks which ranks are gone while it waits for farewells.
constexpr Seconds kFarewellNap{0.05};
/// How long ranks with bad input wait for the first one to end the job. It is spent only where that one finds no fault.
constexpr std::chrono::seconds kFirstRankPatience{5};
/// How long MPI_Finalize may take before the ranks are taken for dead or stopped.
constexpr std::chrono::seconds kFinalizeLimit{10};
/// How long a rank waits, within MPI_Finalize, for mpirun to take note of its farewell. It goes on without an answer;
/// one that then ends before mpirun has read the farewell is taken for a crash, and the job's exit code becomes 1.
constexpr std::chrono::seconds kLauncherLimit{2};

const char* launcher_variable() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

// Where ranks are started minutes apart, or are to give each other up sooner.
Seconds start_limit() {
  constexpr const char* kVariable = "CLEAVE_START_LIMIT";
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return comm::kStartLimit;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds > 0 && seconds <= 1e6)) {
    throw EnvironmentError("read", fmt::format("{}={}", kVariable, text), "use seconds, or unset it");
  }
  return Seconds(seconds);
}

}  // namespace

int launcher_rank() {
  const char* value = launcher_variable();
  return value == nullptr ? 0 : std::atoi(value);
}

bool under_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

bool is_first_on_its_host() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value) == 0;
  }
  return true;
}

void let_first_rank_leave() {
  static bool waited = false;
  if (waited || launcher_rank() == 0 || !under_mpirun() || comm::launcher_keeps_survivors()) return;
  waited = true;
  std::signal(SIGTERM, SIG_DFL);
  std::this_thread::sleep_for(kFirstRankPatience);
}

Session::Session(int argc, char** argv) {
  if (launcher_variable() == nullptr) return;
  mpi_.emplace(argc, argv, start_limit());
}

Session::~Session() { end_host(); }

std::vector<bool> Session::devices_on_this_host() const {
  if (size() == 1) return {false};
  const std::vector<bool>& all = mpi_->on_this_host();
  return {all.begin() + 1, all.end()};
}

void Session::end_host() {
  if (!host_.joinable()) return;
  transport_.reset();  // the host sees that the server is gone, and ends
  host_.join();
}

int Session::share_start_code(int code, const comm::MpiTransportOptions& options) {
  if (!mpi_) return code;
  code = comm::share_start_code(code);
  if (code == 0) transport_ = comm::make_mpi_transport(*mpi_, options);
  return code;
}

comm::Transport& Session::devices() {
  if (size() == 1) {
    end_host();
    comm::LoopbackHub hub(2);
    transport_ = hub.endpoint(0);
    host_ = std::thread([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] {
      try {
        (void)device::run_device_host(*endpoint);
      } catch (const std::exception& error) {
        // The server notices that the endpoint is gone; what happened is said here, where it is known.
        std::fprintf(stderr, "cleave: device host: %s\n", error.what());
      }
    });
  }
  return *transport_;
}

int Session::serve() {
  ignore_stop_requests();
  const device::HostReport report = device::run_device_host(*transport_);
  const bool good = report.end == device::HostEnd::goodbye;
  if (!good) {
    std::fprintf(stderr, "cleave: device rank %d leaves: %s\n", rank(), report.why.c_str());
    transport_->close(kLastSends);
    comm::MpiSession::leave_now(static_cast<int>(ExitCode::environment));
  }
  return 0;
}

void Session::dismiss() {
  if (!mpi_ || !transport_) return;
  std::set<int> there;
  for (int rank = 1; rank < size(); ++rank) {
    transport_->send(rank, comm::encode_goodbye());
    there.insert(rank);
  }
  // What they have sent is taken in, so that they can leave: their hellos, too.
  const SteadyClock clock;
  for (const Seconds begun = clock.now(); !there.empty() && clock.now() - begun < kLastSends;) {
    if (const auto received = transport_->wait(kFarewellNap)) {
      const auto header = comm::decode(received->frame);
      if (header && header->kind == comm::Kind::farewell) there.erase(received->source);
    } else {
      std::erase_if(there, [&](int rank) { return transport_->gone(rank); });
    }
  }
}

void Session::finish(const std::vector<server::RankInfo>& missing, int code, AfterMpi after) {
  if (!mpi_) return;
  if (transport_) transport_->close(kLastSends);
  const RankProcesses processes = transport_ ? RankProcesses(*transport_) : RankProcesses();
  for (const server::RankInfo& rank : missing) (void)processes.end(rank.rank);
  if (!missing.empty()) {
    std::fflush(nullptr);
    comm::MpiSession::leave_now(code);
  }
  const auto left = std::make_shared<std::atomic<bool>>(false);
  std::thread([ranks = mpi_->size(), processes, code, left] {
    std::this_thread::sleep_for(kFinalizeLimit);
    if (*left) return;
    for (int rank = 1; rank < ranks; ++rank) (void)processes.end(rank);
    std::fflush(nullptr);
    comm::MpiSession::leave_now(code);
  }).detach();
  transport_.reset();
  const auto start = std::chrono::steady_clock::now();
  mpi_->finalize();
  if (std::chrono::steady_clock::now() - start >= kLauncherLimit) std::this_thread::sleep_for(kLauncherLimit);
  *left = after == AfterMpi::goes_on;
}

}  // namespace cleave::app
