// Agreement on starting, by a broadcast that is polled so that ranks that wait for the server do not burn a core.
#include <mpi.h>

#include <chrono>
#include <thread>

#include "cleave/comm/start.hpp"
#include "mpi_error.hpp"

namespace cleave::comm {

int share_start_code(int code) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD, &request), "MPI_Ibcast", "start code");
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", "start code");
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return code;
}

}  // namespace cleave::comm
