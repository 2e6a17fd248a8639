// Detection rate by kind of fault and by check: random blocks, spoiled as an emulated liar spoils them.
//
//   verify_detect [BLOCKS]        default: 2000 blocks for each line
//
// Theory: the cheap check finds a block when the error of a row exceeds the bound of rounding. For a single element
// that is its change alone, whatever the random vector; the last column counts the blocks for which it does.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cleave/kernels/product_check.hpp"
#include "device/injected_fault.hpp"
#include "unit/kernels/honest_blocks.hpp"

namespace {

using namespace cleave;

const GemmShape kShape{16, 24, 200};

struct Spoiled {
  bool refused = false, checked = false, audited = false, above = false;
};

std::vector<float> widened(DType wire, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<std::size_t>(kShape.m * kShape.n));
  if (wire == DType::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    kernels::widen(wire, reinterpret_cast<const std::uint16_t*>(bytes.data()), kShape.n,
                   kernels::Rows(values.data(), kShape.m, kShape.n));
  }
  return values;
}

double norm(const float* values, std::int64_t n) {
  double square = 0;
  for (std::int64_t i = 0; i < n; ++i) square += static_cast<double>(values[i]) * values[i];
  return std::sqrt(square);
}

// Block `seed`, computed, spoiled and looked at in each way.
Spoiled spoil(comm::InjectedFault lie, DType wire, std::uint32_t seed) {
  kernels::honest::Source source(seed);
  const auto a = kernels::honest::matrix(source, kernels::honest::Data::normal, kShape.m * kShape.k, wire),
             b = kernels::honest::matrix(source, kernels::honest::Data::normal, kShape.k * kShape.n, wire);
  std::vector<float> c(static_cast<std::size_t>(kShape.m * kShape.n));
  const kernels::ConstMatrix left(a.data(), kShape.k), right(b.data(), kShape.n);
  kernels::gemm_block(kShape, left, right, {c.data(), kShape.n});

  comm::Header task;
  task.kind = comm::Kind::task;
  task.work = comm::Work::gemm;
  task.wire = task.output = wire;
  task.tasklet = TaskletId(seed);
  task.device = DeviceId(0);
  task.op = OpId(0);
  task.panels = 1;
  task.gemm = {kShape.m, kShape.n, kShape.k, 1, 0};
  comm::ResultDraft draft = comm::begin_result(comm::result_header(task));
  if (wire == DType::f32) {
    std::memcpy(draft.outputs[0].data(), c.data(), draft.outputs[0].size());
  } else {
    kernels::narrow(wire, kernels::ConstRows(c.data(), kShape.m, kShape.n),
                    reinterpret_cast<std::uint16_t*>(draft.outputs[0].data()), kShape.n);
  }
  const std::vector<std::byte> honest(draft.outputs[0].begin(), draft.outputs[0].end());
  device::inject_fault(draft, lie, seed);

  Spoiled found;
  const std::vector<float> before = widened(wire, honest), after = widened(wire, draft.outputs[0]);
  found.refused = !kernels::all_representable(wire, draft.outputs[0].data(), kShape.m * kShape.n);
  found.audited = found.refused || std::memcmp(honest.data(), draft.outputs[0].data(), honest.size()) != 0;
  found.checked =
      found.refused || !(kernels::testing_tools::check_product(kShape, left, right, {after.data(), kShape.n}, wire,
                                                               Random(seed, Purpose::verification), wire) <= 1.0);
  const double relative = wire == DType::f32 ? 0 : wire == DType::bf16 ? 0x1p-8 : 0x1p-11;
  found.above = found.refused;
  for (std::int64_t i = 0; i < kShape.m; ++i) {
    double change = 0;
    for (std::int64_t j = 0; j < kShape.n; ++j)
      change = std::max(change, std::abs(static_cast<double>(after[i * kShape.n + j]) - before[i * kShape.n + j]));
    const double bound =
        4 * 0x1p-24 * (std::sqrt(static_cast<double>(kShape.k)) + 1) * norm(a.data() + i * kShape.k, kShape.k) *
            norm(b.data(), kShape.k * kShape.n) +
        std::sqrt(static_cast<double>(kShape.n)) * relative * norm(after.data() + i * kShape.n, kShape.n);
    found.above = found.above || !(change <= bound);
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? std::atoi(argv[1]) : 2000;
  using comm::InjectedFault;
  fmt::print(
      "| fault | wire | refused in any mode | found by `all` | found by `audit` | one element above the bound |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const auto& [lie, name] : {std::pair{InjectedFault::element, "element"},
                                  {InjectedFault::bit, "bit"},
                                  {InjectedFault::swap_rows, "swap_rows"},
                                  {InjectedFault::zero, "zero"},
                                  {InjectedFault::bias, "bias"},
                                  {InjectedFault::nan, "nan"},
                                  {InjectedFault::infinity, "infinity"}}) {
    for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
      int refused = 0, checked = 0, audited = 0, above = 0;
      for (int seed = 1; seed <= blocks; ++seed) {
        const Spoiled found = spoil(lie, wire, static_cast<std::uint32_t>(seed));
        refused += found.refused;
        checked += found.checked;
        audited += found.audited;
        above += found.above;
      }
      const auto share = [&](int count) { return 100.0 * count / blocks; };
      fmt::print("| {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % |\n", name, cleave::name_of(wire),
                 share(refused), share(checked), share(audited), share(above));
    }
  }
  return 0;
}
