// JobQueue: a list of jobs under one mutex; each thread takes the first.
#include "cleave/base/lookahead.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace cleave {

struct JobQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool ending = false;
  std::vector<std::thread> threads;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ending || !jobs.empty(); });
      if (ending) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // frees what it holds before others are kept waiting
      lock.lock();
    }
  }
};

JobQueue::JobQueue(int threads) : state_(std::make_unique<State>()) {
  if (threads <= 1) return;
  try {
    state_->threads.reserve(static_cast<std::size_t>(threads));
    for (int t = 0; t < threads; ++t) state_->threads.emplace_back([state = state_.get()] { state->serve(); });
  } catch (const std::system_error&) {  // the jobs get done by fewer threads
  } catch (const std::bad_alloc&) {}
}

JobQueue::~JobQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    state_->jobs.clear();
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int JobQueue::threads() const { return static_cast<int>(state_->threads.size()); }

void JobQueue::add(Job job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->changed.notify_one();
}

void JobQueue::clear() {
  std::deque<Job> dropped;
  const std::lock_guard lock(state_->mutex);
  dropped.swap(state_->jobs);
}

void JobQueue::run_next() {
  if (state_->jobs.empty() || !state_->threads.empty()) return;
  const Job job = std::move(state_->jobs.front());
  state_->jobs.pop_front();
  job();
}

}  // namespace cleave
