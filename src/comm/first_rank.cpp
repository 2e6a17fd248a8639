// Point to point on MPI_COMM_WORLD. Ranks that wait sleep: the server may read its input for minutes.
#include "first_rank.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "mpi_error.hpp"

namespace cleave::comm {

namespace {

constexpr int kStartTag = 1;
constexpr std::chrono::milliseconds kNap(1);

void receive(void* data, std::size_t bytes, int source) {
  MPI_Request request = MPI_REQUEST_NULL;
  const std::string whose = fmt::format("rank {}, at start", source);
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source, kStartTag, MPI_COMM_WORLD, &request),
            "MPI_Irecv", whose);
  for (int done = 0;;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", whose);
    if (done != 0) return;
    std::this_thread::sleep_for(kNap);
  }
}

void send(const void* data, std::size_t bytes, int dest) {
  check_mpi(MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, dest, kStartTag, MPI_COMM_WORLD), "MPI_Send",
            fmt::format("rank {}, at start", dest));
}

bool is_first() {
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank", "MPI_COMM_WORLD");
  return rank == 0;
}

int number_of_ranks() {
  int size = 1;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", "MPI_COMM_WORLD");
  return size;
}

}  // namespace

std::vector<std::byte> bytes_to_first(const void* own, std::size_t bytes) {
  if (!is_first()) {
    send(own, bytes, 0);
    return {};
  }
  const int ranks = number_of_ranks();
  std::vector<std::byte> all(static_cast<std::size_t>(ranks) * bytes);
  std::memcpy(all.data(), own, bytes);
  for (int rank = 1; rank < ranks; ++rank) receive(all.data() + static_cast<std::size_t>(rank) * bytes, bytes, rank);
  return all;
}

void bytes_from_first(void* data, std::size_t bytes) {
  if (!is_first()) {
    receive(data, bytes, 0);
    return;
  }
  for (int rank = number_of_ranks() - 1; rank > 0; --rank) send(data, bytes, rank);
}

}  // namespace cleave::comm
