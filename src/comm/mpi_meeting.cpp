// Rank 0 says over MPI where it listens; the others connect to it, and over several hosts all hear whether all did.
#include "mpi_meeting.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <functional>
#include <list>
#include <string>
#include <utility>

#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "first_rank.hpp"
#include "interfaces.hpp"
#include "mpi_error.hpp"
#include "shared_connect.hpp"
#include "start_limit.hpp"

namespace cleave::comm {

namespace {

// How long start-up waits for the others, and how long a rank tries one of the server's addresses before the next.
constexpr Seconds kMeetingPatience{20}, kAddressPatience{3};
constexpr int kLookMilliseconds = 5;

// Both ends of the side channel last as long as the process: closing them is what says that it has ended.
Liveness* keep_for_life(std::unique_ptr<Liveness> end) {
  static std::list<std::unique_ptr<Liveness>> all;
  return all.emplace_back(std::move(end)).get();
}

// Names of the hosts that rank 0 is to be reached from, on rank 0.
std::vector<std::string> other_hosts(const MpiSession& session) {
  std::vector<std::string> others;
  for (std::size_t i = 0; i < session.host_names().size(); ++i) {
    if (!session.on_this_host()[i]) others.push_back(session.host_names()[i]);
  }
  return others;
}

template <class End, class Condition>
void look_until(End& end, Seconds at_most, const Condition& condition) {
  const SteadyClock clock;
  const Seconds deadline = clock.now() + at_most;
  for (end.look(); !condition() && clock.now() < deadline; end.look()) {
    pollfd state{end.descriptor(), POLLIN, 0};
    (void)::poll(&state, 1, kLookMilliseconds);
  }
}

// Tries every address of rank 0 until one lets this rank in: two hosts may have networks of the same addresses.
Descriptor connect_to_first(const LivenessAddress& address, int rank) {
  std::vector<std::string> places;
  for (const auto& digits : address.digits) {
    if (digits.front() != 0) places.emplace_back(digits.data());
  }
  places.emplace_back(address.host.data());
  for (const std::string& place : places) {
    LivenessAddress one = address;
    one.host = {};
    std::copy(place.begin(), place.end(), one.host.begin());
    LivenessLink link(one, rank, kAddressPatience);
    if (!link.connected()) continue;
    look_until(link, kAddressPatience, [&] { return link.let_in() || link.closed(); });
    if (link.let_in()) return link.take();
  }
  return {};
}

// Sockets of every rank to rank 0. The rank that is missing is told to all, so that all end.
std::vector<Descriptor> connect_streams(LivenessHub* hub, const LivenessAddress& address, const Meeting& meeting) {
  std::vector<Descriptor> sockets(static_cast<std::size_t>(meeting.size));
  int missing = 0;
  if (hub != nullptr) {
    look_until(*hub, kMeetingPatience, [&] { return hub->complete(); });
    for (int rank = meeting.size - 1; rank > 0; --rank) {
      if (!hub->connected(rank)) {
        missing = rank;
      } else {
        sockets[static_cast<std::size_t>(rank)] = hub->take(rank);
      }
    }
  } else {
    sockets[0] = connect_to_first(address, meeting.rank);
  }
  missing = hear_first(missing);
  if (missing != 0) {
    throw EnvironmentError("connect",
                           fmt::format("rank {}, to rank 0 at {}:{}", missing, address.host.data(), address.port),
                           "it was not let in; server.interface says where rank 0 is to listen");
  }
  return sockets;
}

}  // namespace

Meeting meet(const MpiSession& session, const MpiTransportOptions& options) {
  const StartLimit limit(session.start_limit(), "one waits for the others in MPI");
  const std::vector<bool>& here = session.on_this_host();
  const bool one_host = std::ranges::all_of(here, std::identity());
  Meeting meeting;
  meeting.rank = session.rank();
  meeting.size = session.size();
  if (one_host) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &meeting.comm), "MPI_Comm_dup", "MPI_COMM_WORLD");
    check_mpi(MPI_Comm_set_errhandler(meeting.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", "the transport");
  }

  std::unique_ptr<LivenessHub> hub;
  LivenessAddress address;
  if (meeting.rank == 0) {
    hub = std::make_unique<LivenessHub>(
        meeting.size, one_host && !options.streams,
        options.interface.empty() ? address_towards(other_hosts(session)) : options.interface);
    address = hub->address();
  }
  address = hear_first(address);
  if (address.port != 0) {
    meeting.sockets = connect_streams(hub.get(), address, meeting);
  } else if (!one_host) {
    throw EnvironmentError("listen", "rank 0", "it has no connection for ranks of other hosts");
  } else if (meeting.rank == 0) {
    meeting.liveness = keep_for_life(std::move(hub));
  } else {
    meeting.liveness = keep_for_life(std::make_unique<LivenessLink>(address, meeting.rank, kMeetingPatience));
  }

  keep_what_is_lent({});
  meeting.links = connect_shared_memory(meeting.rank, here, options.shared_memory);
  return meeting;
}

}  // namespace cleave::comm
