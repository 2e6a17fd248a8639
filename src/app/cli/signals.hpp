// What signals and standard streams mean to the program. Until heed_stop_requests() they have their usual effect, so
// that a program that waits for a file or for other ranks can be ended; from then on there is something to lose, and
// they are requests.
#pragma once

namespace cleave::app {

/// A reader that leaves (`cleave train ... 2>&1 | head`) costs its output, and a limit on the size of files (`ulimit
/// -f`) the file that is too large, never the run: writes fail with EPIPE or EFBIG.
void let_writes_fail();

/// A standard stream that was handed down closed stays unusable, but its number is taken: the next file that is opened,
/// such as metrics.jsonl, would get it, and whatever is printed would go there. To be called first.
void occupy_closed_streams();

/// SIGTERM and SIGUSR1 end the program again, whatever the one that started it made of them. SIGINT and SIGHUP stay as
/// they were handed down: a shell ignores them for what it runs in the background, nohup for what outlives it.
void take_default_signals();

/// From now on SIGTERM, SIGUSR1, SIGINT and SIGHUP ask to stop; the last two unless they were ignored.
void heed_stop_requests();
[[nodiscard]] bool stop_requested();

/// On a device rank: the launcher passes signals on to every rank, but devices leave when the server says so.
void ignore_stop_requests();

/// To be called last: whether standard output took everything. A reader that left is no failure.
[[nodiscard]] bool standard_output_is_whole();

}  // namespace cleave::app
