// Each kind of injected fault, on the first output of a result, element by element in its own type.
#include "injected_fault.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "cleave/base/random.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::device {

namespace {

using comm::InjectedFault;

// An element of any output type as a double; 64-bit sums lose bits, which a fault may.
double load(const std::byte* at, DType type) {
  const auto read = [at]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case DType::bf16: return kernels::from_bf16(read(std::uint16_t{}));
    case DType::f16: return kernels::from_f16(read(std::uint16_t{}));
    case DType::i32: return read(std::int32_t{});
    case DType::i64: return static_cast<double>(read(std::int64_t{}));
    default: return read(float{});
  }
}

void store(std::byte* at, DType type, double value) {
  const auto write = [at](auto element) { std::memcpy(at, &element, sizeof element); };
  const auto integer = [value]<class T>(T low) {
    constexpr T kHigh = std::numeric_limits<T>::max();
    if (std::isnan(value) || value <= static_cast<double>(low)) return low;
    return value >= static_cast<double>(kHigh) ? kHigh : static_cast<T>(value);
  };
  switch (type) {
    case DType::bf16: return write(kernels::to_bf16(static_cast<float>(value)));
    case DType::f16: return write(kernels::to_f16(static_cast<float>(value)));
    case DType::i32: return write(integer(std::numeric_limits<std::int32_t>::min()));
    case DType::i64: return write(integer(std::numeric_limits<std::int64_t>::min()));
    default: return write(static_cast<float>(value));
  }
}

// Of an answer in a step of stages: bytes that are made wrong, and columns of what then counts as a row.
constexpr std::size_t kOfStage = 256;
constexpr std::int64_t kColumnsOfStage = 16;

bool is_integer(DType type) { return type == DType::i32 || type == DType::i64; }

}  // namespace

void inject_fault(comm::ResultDraft& result, InjectedFault fault, std::uint32_t seed) {
  const DType type = result.header.output;
  const auto size = static_cast<std::size_t>(size_of(type));
  const std::span<std::byte> bytes = result.outputs[0];
  const std::uint64_t count = bytes.size() / size;
  const Random random(seed, Purpose::churn);
  const auto element = static_cast<std::size_t>(random.below(0, count));
  std::byte* at = bytes.data() + element * size;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();

  switch (fault) {
    case InjectedFault::none:
    case InjectedFault::stale:
    case InjectedFault::other: return;
    case InjectedFault::element: {
      const double value = load(at, type);
      return store(at, type, value + std::max(std::fabs(value), is_integer(type) ? 1 << 20 : 1.0));
    }
    case InjectedFault::bit: {
      const std::uint64_t bit = random.below(1, size * 8);
      at[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      return;
    }
    case InjectedFault::swap_rows: {
      const comm::Work work = result.header.work;
      const std::int64_t columns = work == comm::Work::gemm    ? result.header.gemm.n
                                   : work == comm::Work::stage ? kColumnsOfStage
                                                               : result.header.attention.head_dim;
      const auto row = static_cast<std::size_t>(columns) * size;
      const std::uint64_t rows = bytes.size() / row;
      if (rows < 2) return std::fill(bytes.begin(), bytes.end(), std::byte{0});
      const std::uint64_t first = random.below(1, rows), second = (first + 1 + random.below(2, rows - 1)) % rows;
      std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(first * row),
                       bytes.begin() + static_cast<std::ptrdiff_t>((first + 1) * row),
                       bytes.begin() + static_cast<std::ptrdiff_t>(second * row));
      return;
    }
    case InjectedFault::zero: return std::fill(bytes.begin(), bytes.end(), std::byte{0});
    case InjectedFault::bias: {
      // Small against each element, yet far above its rounding: up to 1 % of it.
      for (std::uint64_t i = 0; i < count; ++i) {
        std::byte* here = bytes.data() + i * size;
        store(here, type, load(here, type) * (1 + 0.01 * (2 * random.uniform(i + 1) - 1)));
      }
      return;
    }
    case InjectedFault::huge: return store(at, type, type == DType::f16 ? 6e4 : 1e38);
    case InjectedFault::nan: return store(at, type, std::numeric_limits<double>::quiet_NaN());
    case InjectedFault::infinity: return store(at, type, kInfinity);
  }
}

void FaultInjector::inject(comm::ResultDraft& result, const comm::Header& task) {
  if (task.fault == InjectedFault::none || result.outputs[0].empty()) return;
  if (task.work == comm::Work::stage && result.outputs[0].size() > kOfStage) {
    // Near its beginning, where a whole visit that is recomputed has the same as its first answer.
    comm::ResultDraft first;
    first.header = result.header;
    first.outputs[0] = result.outputs[0].first(kOfStage);
    if (task.fault != InjectedFault::stale && task.fault != InjectedFault::other)
      return inject_fault(first, task.fault, task.sequence);
  }
  if (task.fault != InjectedFault::stale && task.fault != InjectedFault::other)
    return inject_fault(result, task.fault, task.sequence);
  const comm::GemmBlock& g = task.gemm;
  const comm::AttentionBlock& a = task.attention;
  const comm::MessagePart& panel = result.header.part;
  const comm::StageTask& s = task.stage_task;
  const bool stale = task.fault == InjectedFault::stale;
  std::vector<std::vector<std::byte>>& last =
      last_[{task.device,
             stale ? task.op : OpId(),
             task.work,
             {static_cast<std::int64_t>(s.errand), stale ? s.stage : 0, s.rows, s.result_bytes, g.m, g.n, g.k, g.blocks,
              g.first_block, panel.first, panel.count, a.pairs, a.seq, a.head_dim, a.queries}}];
  std::vector<std::vector<std::byte>> now;
  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    now.emplace_back(result.outputs[i].begin(), result.outputs[i].end());
    if (!last.empty() && last[i].size() == now[i].size())
      std::copy(last[i].begin(), last[i].end(), result.outputs[i].begin());
  }
  last = std::move(now);
}

}  // namespace cleave::device
