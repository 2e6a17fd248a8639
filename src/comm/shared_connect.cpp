// Rank 0 says where its arena is, the others where theirs and their ledgers are, and rank 0 whom it has found.
#include "shared_connect.hpp"

#include <optional>

#include "mpi_error.hpp"

namespace cleave::comm {

namespace {

// Pids of 0 where a rank shares nothing.
struct Offer {
  SharedAddress arena, ledger;
};

// True: rank 0 lives on this host, and somebody beside it.
bool is_with_first(MPI_Comm all, MPI_Comm host) {
  int rank = -1, ranks_here = 0;
  check_mpi(MPI_Comm_rank(all, &rank), "MPI_Comm_rank", "the transport");
  check_mpi(MPI_Comm_size(host, &ranks_here), "MPI_Comm_size", "the ranks of this host");
  check_mpi(MPI_Bcast(&rank, 1, MPI_INT, 0, host), "MPI_Bcast", "the ranks of this host");
  return rank == 0 && ranks_here > 1;
}

std::unique_ptr<SharedLink> find(const std::shared_ptr<FrameArena>& own, const Offer& offer) {
  auto arena = SharedMapping::open(offer.arena, /*writable=*/false);
  auto ledger = SharedMapping::open(offer.ledger, /*writable=*/true);
  if (!arena || !ledger || ledger->bytes() != SharedLink::kLedgerBytes) return nullptr;
  return std::make_unique<SharedLink>(own, std::move(*arena), std::move(*ledger), SharedSide::finder);
}

}  // namespace

std::vector<std::unique_ptr<SharedLink>> connect_shared_memory(MPI_Comm all, MPI_Comm host, bool allowed) {
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(all, &rank), "MPI_Comm_rank", "the transport");
  check_mpi(MPI_Comm_size(all, &size), "MPI_Comm_size", "the transport");
  std::vector<std::unique_ptr<SharedLink>> links(static_cast<std::size_t>(size));
  const bool here = is_with_first(all, host);
  std::shared_ptr<FrameArena> own;
  SharedAddress first;
  if (rank == 0 && here && allowed) {
    own = share_large_frames();
    if (own) first = own->address();
  }
  check_mpi(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, all), "MPI_Bcast", "shared memory");
  if (first.pid == 0) return links;

  Offer offer;
  std::optional<SharedMapping> arena, ledger;
  if (rank != 0 && here) {
    arena = SharedMapping::open(first, /*writable=*/false);
    if (arena) ledger = SharedMapping::make(SharedLink::kLedgerBytes);
    if (ledger) own = share_large_frames();
    if (own) offer = {own->address(), ledger->address()};
  }
  std::vector<Offer> offers(rank == 0 ? links.size() : 0);
  check_mpi(MPI_Gather(&offer, sizeof offer, MPI_BYTE, offers.data(), sizeof offer, MPI_BYTE, 0, all), "MPI_Gather",
            "shared memory");
  std::vector<int> found(offers.size(), 0);
  for (std::size_t i = 1; i < offers.size(); ++i) {
    links[i] = find(own, offers[i]);
    found[i] = links[i] ? 1 : 0;
  }
  int was_found = 0;
  check_mpi(MPI_Scatter(found.data(), 1, MPI_INT, &was_found, 1, MPI_INT, 0, all), "MPI_Scatter", "shared memory");
  if (was_found != 0) {
    links[0] = std::make_unique<SharedLink>(own, std::move(*arena), std::move(*ledger), SharedSide::maker);
  }
  return links;
}

}  // namespace cleave::comm
