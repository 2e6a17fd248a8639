// Rank 0 says where its arena is, the others where theirs and their ledgers are, and rank 0 whom it has found.
#include "shared_connect.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "first_rank.hpp"

namespace cleave::comm {

namespace {

// Pids of 0 where a rank shares nothing.
struct Offer {
  SharedAddress arena, ledger;
};

std::unique_ptr<SharedLink> find(const std::shared_ptr<FrameArena>& own, const Offer& offer) {
  auto arena = SharedMapping::open(offer.arena, /*writable=*/false);
  auto ledger = SharedMapping::open(offer.ledger, /*writable=*/true);
  if (!arena || !ledger || ledger->bytes() != SharedLink::kLedgerBytes) return nullptr;
  return std::make_unique<SharedLink>(own, std::move(*arena), std::move(*ledger), SharedSide::finder);
}

}  // namespace

std::vector<std::unique_ptr<SharedLink>> connect_shared_memory(int rank, const std::vector<bool>& here, bool allowed) {
  std::vector<std::unique_ptr<SharedLink>> links(here.size());
  const bool with_first = here.front() && std::ranges::count(here, true) > 1;
  std::shared_ptr<FrameArena> own;
  SharedAddress first;
  if (rank == 0 && with_first && allowed) {
    own = share_large_frames();
    if (own) first = own->address();
  }
  first = hear_first(first);
  if (first.pid == 0) return links;

  Offer offer;
  std::optional<SharedMapping> arena, ledger;
  if (rank != 0 && with_first) {
    arena = SharedMapping::open(first, /*writable=*/false);
    if (arena) ledger = SharedMapping::make(SharedLink::kLedgerBytes);
    if (ledger) own = share_large_frames();
    if (own) offer = {own->address(), ledger->address()};
  }
  const std::vector<Offer> offers = tell_first(offer);
  std::vector<char> found(links.size());
  for (std::size_t i = 1; i < offers.size(); ++i) {
    links[i] = find(own, offers[i]);
    found[i] = links[i] ? 1 : 0;
  }
  found = hear_first(std::move(found));
  if (found[static_cast<std::size_t>(rank)] != 0) {
    links[0] = std::make_unique<SharedLink>(own, std::move(*arena), std::move(*ledger), SharedSide::maker);
  }
  return links;
}

}  // namespace cleave::comm
