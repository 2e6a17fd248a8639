// Products beside BLIS called directly and the processor's peak; the server's kernels beside its memory.
//
//   build/release/bench/kernels_bench [--benchmark_filter=...]
//
// Each product is timed in turns with BLIS on the same operands, and the ratio is the median of the turns; each kernel
// counts the bytes that it must read and write, and is set beside STREAM's triad on as many threads. Every benchmark
// checks its answer.
#include <benchmark/benchmark.h>
#include <blis.h>

#include <cmath>
#include <thread>

#include "cleave/base/random.hpp"
#include "cleave/kernels/activations.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/optimizer.hpp"
#include "roofline.hpp"

namespace {

using namespace cleave;
using bench::seconds_now;

std::vector<float> random_floats(std::int64_t count, std::uint64_t index) {
  const Random random(7, Purpose::test);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] =
        static_cast<float>(random.uniform(index * 1'000'000'007ULL + static_cast<std::uint64_t>(i)) - 0.5);
  return values;
}

// BLIS as anybody would call it, on one thread, with the same kernels.
void blis_directly(GemmShape s, const float* a, bool a_transposed, const float* b, bool b_transposed, float* c) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  float one = 1, zero = 0;
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, s.m, s.n, s.k, &one, const_cast<float*>(a), a_transposed ? 1 : s.k,
               a_transposed ? s.m : 1, const_cast<float*>(b), b_transposed ? 1 : s.n, b_transposed ? s.k : 1, &zero, c,
               s.n, 1, nullptr, &runtime);
}

// A device's product, as canonical numerics has it, beside BLIS. Arguments: m, n, k, A stored transposed, B likewise.
void product(benchmark::State& state) {
  const GemmShape s{state.range(0), state.range(1), state.range(2)};
  const bool at = state.range(3) != 0, bt = state.range(4) != 0;
  const std::vector<float> a = random_floats(s.m * s.k, 1), b = random_floats(s.k * s.n, 2);
  std::vector<float> c(static_cast<std::size_t>(s.m * s.n)), reference(c.size());
  const kernels::ConstMatrix left =
      at ? kernels::ConstMatrix(a.data(), s.m).transposed() : kernels::ConstMatrix(a.data(), s.k);
  const kernels::ConstMatrix right =
      bt ? kernels::ConstMatrix(b.data(), s.k).transposed() : kernels::ConstMatrix(b.data(), s.n);
  kernels::Parallel one(1);
  std::vector<std::int16_t> rows(static_cast<std::size_t>(s.m)), columns(static_cast<std::size_t>(s.n));
  (void)kernels::norm_exponents(one, left, s.m, s.k, rows);
  (void)kernels::norm_exponents(one, right.transposed(), s.n, s.k, columns);
  kernels::selected_gemm_kernels();
  std::vector<double> ours, theirs, ratios;
  for (auto _ : state) {
    const double start = seconds_now();
    const auto status =
        kernels::multiply_whole(one, s, left, right, rows, columns, DType::i64, kernels::Matrix(c.data(), s.n));
    const double middle = seconds_now();
    blis_directly(s, a.data(), at, b.data(), bt, reference.data());
    const double end = seconds_now();
    if (status != kernels::ProductStatus::ok) state.SkipWithError("not representable");
    ours.push_back(middle - start);
    ratios.push_back((end - middle) / (middle - start));
    state.SetIterationTime(middle - start);
  }
  double worst = 0;
  for (std::size_t i = 0; i < c.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(c[i]) - reference[i]));
  if (worst > 1e-4 * std::sqrt(static_cast<double>(s.k))) state.SkipWithError("the product is wrong");
  const double rate =
      2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / bench::median(ours);
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["of_BLIS"] = bench::median(ratios);
  state.counters["of_peak"] = rate / bench::peak_flops();
}
BENCHMARK(product)
    ->ArgNames({"m", "n", "k", "At", "Bt"})
    ->Args({256, 256, 1024, 0, 0})
    ->Args({512, 512, 1024, 0, 0})
    ->Args({1024, 1024, 1024, 0, 0})
    ->Args({1024, 1152, 384, 0, 0})
    ->Args({1024, 1536, 384, 0, 0})
    ->Args({1024, 384, 1536, 0, 0})
    ->Args({1024, 384, 1536, 0, 1})
    ->Args({1024, 1536, 384, 0, 1})
    ->Args({384, 768, 2048, 1, 0})
    ->Args({2048, 2048, 4096, 0, 1})
    ->UseManualTime()
    ->MinTime(0.5);

}  // namespace

BENCHMARK_MAIN();
