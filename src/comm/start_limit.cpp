// A thread, because MPI does not come back from where it waits.
#include "start_limit.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "cleave/base/error.hpp"

namespace cleave::comm {

StartLimit::StartLimit(Seconds limit, std::string waiting) {
  // Signals are for the thread that trains: they end what it waits in.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    watcher_ = std::thread([this, limit, text = std::move(waiting)] { watch(limit, text); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw EnvironmentError("start", "a thread", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StartLimit::~StartLimit() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void StartLimit::watch(Seconds limit, const std::string& waiting) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(limit.value()), [this] { return over_; })) return;
  const std::string text = fmt::format(
      "cleave: ranks do not meet: {} for {:g} s; a rank may have ended in it, stand still, or lack memory\n", waiting,
      limit.value());
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(static_cast<int>(ExitCode::environment));
}

}  // namespace cleave::comm
