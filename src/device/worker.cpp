// The loop of the computing thread.
#include "worker.hpp"

#include <new>
#include <utility>

#include "execute.hpp"
#include "injected_fault.hpp"

namespace cleave::device {

Worker::Worker(int threads, std::function<void()> notify)
    : notify_(std::move(notify)), parallel_(threads), thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
}

std::optional<Outcome> Worker::take() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (finished_.empty()) return std::nullopt;
  Outcome first = std::move(finished_.front());
  finished_.pop_front();
  return first;
}

void Worker::put(Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    finished_.push_back(std::move(outcome));
  }
  notify_();
}

void Worker::run() {
  try {
    Scratch scratch;
    FaultInjector injector;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      Job job = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();

      Seconds start = clock_.now();
      const auto answer = [&](std::variant<comm::ResultDraft, comm::Reason> result) {
        std::optional<SipTag> digest;
        if (auto* draft = std::get_if<comm::ResultDraft>(&result)) {
          injector.inject(*draft, job.view.header);
          if (job.view.header.digest) digest = comm::digest_of(comm::key_of(job.view), draft->outputs);
        }
        const Seconds done = clock_.now();
        put({job.view.header, job.arrival, std::move(result), done - start, done, digest});
        start = done;
      };
      try {
        if (job.product) {
          job.product->take(job.view, parallel_, scratch, answer);
        } else if (job.drops) {
          job.stages->drop_slices(*job.drops);
        } else if (job.stages != nullptr) {
          if (auto result = job.stages->execute(job.view, job.frame)) answer(std::move(*result));
        } else {
          answer(execute(job.view, parallel_, scratch));
        }
      } catch (const std::bad_alloc&) {
        answer(comm::Reason::memory);  // of this host, not of the emulated device; the server's answer is one
      }
      lock.lock();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    notify_();
  }
}

}  // namespace cleave::device
