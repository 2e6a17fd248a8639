// Handlers set a flag and nothing else.
#include "cli/signals.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

namespace cleave::app {

namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) { requested = true; }

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

void let_writes_fail() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The wrong way round, so that reading or writing still fails. The lowest free number is this one.
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void take_default_signals() {
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
}

void heed_stop_requests() {
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, request_stop);
  for (const int signal : {SIGINT, SIGHUP}) {
    if (!is_ignored(signal)) std::signal(signal, request_stop);
  }
}

bool stop_requested() { return requested; }

void ignore_stop_requests() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) std::signal(signal, SIG_IGN);
}

bool standard_output_is_whole() {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return true;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace cleave::app
