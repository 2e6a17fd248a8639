// MPI return codes as our errors.
#pragma once

#include <source_location>
#include <string_view>

namespace cleave::comm {

/// Errors: EnvironmentError with MPI's own text when `code` is not MPI_SUCCESS.
void check_mpi(int code, const char* operation, std::string_view object,
               std::source_location where = std::source_location::current());

/// True for codes with which a request ends because of the other rank: its death, or a message cut to our buffer.
[[nodiscard]] bool is_peer_failure(int code);

}  // namespace cleave::comm
