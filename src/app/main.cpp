// Entry point of the program: read the command line, run the command, turn whatever went wrong into an exit code.
#include <malloc.h>

#include <functional>

#include "cli/command_line.hpp"
#include "cli/failures.hpp"
#include "cli/signals.hpp"
#include "cli/want_of_memory.hpp"
#include "commands/commands.hpp"
#include "commands/session.hpp"

namespace {

// Large blocks go back to the system when they are freed. Left to itself the GNU library raises this limit to the
// largest block freed so far (32 MiB at most), and tensors and messages of many sizes then leave holes in its heap that
// the memory plan knows nothing of. Smaller blocks are worth keeping: mapping them would cost a page fault per 4 KiB.
constexpr int kMappedBlock = 4 << 20;
// So much of the heap's free end is kept: giving it back and asking again for every message costs more page faults.
constexpr int kKeptEnd = 16 << 20;

}  // namespace

int main(int argc, char** argv) {
  using namespace cleave::app;
  occupy_closed_streams();
  mallopt(M_MMAP_THRESHOLD, kMappedBlock);
  mallopt(M_TRIM_THRESHOLD, kKeptEnd);
  let_writes_fail();
  prepare_for_want_of_memory();

  // 1. What is asked for. --help, --version and usage errors end here.
  CommandLine line;
  const auto ask = [&] {
    line = parse_command_line(argc, argv);
    return line.ended.value_or(0);
  };
  int code = with_exit_code(std::cref(ask));  // by reference: a copy would take memory where nothing catches its want
  // 2. Do it. Commands with ranks start MPI themselves.
  const auto act = [&] { return run_command(line, argc, argv); };
  if (code == 0 && !line.ended) code = with_exit_code(std::cref(act));
  if (code == 0) code = with_exit_code(require_whole_output);

  // 3. The rank that prints for all ranks leaves first.
  if (code != 0) let_first_rank_leave();
  return code;
}
