// The thread pool: a generation counter wakes the workers, an atomic counter deals out the chunks. The caller waits for
// those workers alone that have begun: where ranks share cores, a worker may wake long after the last chunk was dealt.
#include "cleave/kernels/parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"

namespace cleave::kernels {
namespace {
thread_local bool inside_a_loop = false;
}

struct Parallel::Pool {
  struct Loop {
    std::int64_t n = 0, chunk = 1;
    Call call = nullptr;
    void* context = nullptr;
  };

  std::mutex one_loop;  // held by the caller whose loop is running
  std::mutex mutex;     // guards what follows, except `next`
  std::condition_variable work_ready, work_done;
  Loop loop;
  std::uint64_t generation = 0;
  bool open = false;  // workers may still join the loop
  int busy = 0;       // workers that joined it and have not left
  bool stopping = false;
  std::exception_ptr failure;
  std::atomic<std::int64_t> next{0};  // index of the next chunk to deal out
  std::vector<std::thread> workers;

  // `owner`: the pool of the thread that called it, not of a worker's.
  void work_on(const Loop& current, Parallel* owner = nullptr) {
    inside_a_loop = true;
    const std::int64_t chunks = (current.n + current.chunk - 1) / current.chunk;
    try {
      for (std::int64_t c = next.fetch_add(1); c < chunks; c = next.fetch_add(1)) {
        const std::int64_t begin = c * current.chunk;
        current.call(current.context, begin, std::min(current.n, begin + current.chunk));
        if (owner != nullptr) owner->look_after_others();
      }
    } catch (...) {
      next.store(chunks);
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    inside_a_loop = false;
  }

  void serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      work_ready.wait(lock, [&] { return stopping || (open && generation != seen); });
      if (stopping) return;
      seen = generation;
      ++busy;
      const Loop current = loop;
      lock.unlock();
      work_on(current);
      lock.lock();
      if (--busy == 0) work_done.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work_ready.notify_all();
    for (auto& worker : workers) worker.join();
  }
};

Parallel::Parallel(int threads) : threads_(std::max(1, threads)) {
  if (threads_ == 1) return;
  pool_ = std::make_unique<Pool>();
  try {
    for (int t = 1; t < threads_; ++t) pool_->workers.emplace_back([pool = pool_.get()] { pool->serve(); });
  } catch (const std::system_error& error) {
    pool_->stop();
    throw EnvironmentError("start", fmt::format("a pool of {} threads", threads_), error.what());
  } catch (...) {  // no memory: those that were started must not outlive the pool
    pool_->stop();
    throw;
  }
}

Parallel::~Parallel() {
  if (pool_) pool_->stop();
}

std::span<double> Parallel::memory_for(std::int64_t terms) {
  thread_local std::vector<double> memory;
  const auto count = static_cast<std::size_t>(terms);
  if (memory.size() < count) memory.resize(count);
  return std::span(memory).first(count);
}

void Parallel::look_after_others() {
  if (!meanwhile_) return;
  const Seconds now = clock_.now();
  if (now - looked_after_ < kMeanwhile) return;
  meanwhile_();
  looked_after_ = clock_.now();
}

void Parallel::run(std::int64_t n, std::int64_t chunk, Call call, void* context) {
  CLEAVE_ASSERT(chunk > 0, "chunk {}", chunk);
  if (!pool_ || n <= chunk || inside_a_loop) {
    for (std::int64_t begin = 0; begin < n; begin += chunk) {
      call(context, begin, std::min(n, begin + chunk));
      if (!inside_a_loop) look_after_others();
    }
    return;
  }
  Pool& pool = *pool_;
  const std::lock_guard my_turn(pool.one_loop);
  {
    const std::lock_guard lock(pool.mutex);
    pool.loop = {n, chunk, call, context};
    pool.failure = nullptr;
    pool.next.store(0);
    pool.open = true;
    ++pool.generation;
  }
  pool.work_ready.notify_all();
  pool.work_on(pool.loop, this);
  std::unique_lock lock(pool.mutex);
  pool.open = false;
  pool.work_done.wait(lock, [&] { return pool.busy == 0; });
  if (pool.failure) std::rethrow_exception(std::exchange(pool.failure, nullptr));
}

}  // namespace cleave::kernels
