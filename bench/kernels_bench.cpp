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

// A kernel on all cores, in turns with STREAM's triad. `bytes`: what it must read and write for each element of rows x
// cols, what is only written counting twice, as in the triad.
template <class Kernel>
void through_memory(benchmark::State& state, double bytes, std::int64_t elements, const Kernel& kernel) {
  kernels::Parallel parallel(static_cast<int>(std::thread::hardware_concurrency()));
  bench::Triad triad;
  std::vector<double> rates, ratios;
  kernel(parallel);
  for (auto _ : state) {
    const double memory = triad.rate(parallel), start = seconds_now();
    kernel(parallel);
    const double seconds = seconds_now() - start, rate = bytes * static_cast<double>(elements) / seconds;
    rates.push_back(rate);
    ratios.push_back(rate / memory);
    state.SetIterationTime(seconds);
  }
  state.counters["GB/s"] = bench::median(rates) / 1e9;
  state.counters["of_memory"] = bench::median(ratios);
}

constexpr std::int64_t kRows = 8192, kCols = 4096, kElements = kRows * kCols;

struct Tensors {
  std::vector<float> x = random_floats(kElements, 3), dy = random_floats(kElements, 4), out = x;
  std::vector<float> w = std::vector<float>(kCols, 1.0F), b = std::vector<float>(kCols, 0.5F), mean = b, sum = b;
  std::vector<float> row_mean = std::vector<float>(kRows), row_scale = row_mean;

  [[nodiscard]] kernels::ConstRows in() const { return {x.data(), kRows, kCols}; }
  [[nodiscard]] kernels::ConstRows gradient() const { return {dy.data(), kRows, kCols}; }
  kernels::Rows result() { return {out.data(), kRows, kCols}; }
};
Tensors& tensors() {
  static Tensors all;
  return all;
}

void layer_norm(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 12, kElements, [&](kernels::Parallel& parallel) {
    kernels::layer_norm(parallel, t.in(), t.w.data(), t.b.data(), 1e-5, t.result(), t.row_mean.data(),
                        t.row_scale.data());
  });
  double sum = 0;
  for (std::int64_t j = 0; j < kCols; ++j) sum += t.out[static_cast<std::size_t>(j)];
  if (std::abs(sum / kCols - 0.5) > 1e-4) state.SkipWithError("a row's mean is not its bias");
}
BENCHMARK(layer_norm)->UseManualTime();

void layer_norm_backward(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 16, kElements, [&](kernels::Parallel& parallel) {
    kernels::layer_norm_backward(parallel, t.in(), t.w.data(), t.row_mean.data(), t.row_scale.data(), t.gradient(),
                                 t.result(), t.sum.data(), t.mean.data());
  });
  double sum = 0;
  for (std::int64_t j = 0; j < kCols; ++j) sum += t.out[static_cast<std::size_t>(j)];
  if (std::abs(sum / kCols) > 1e-3) state.SkipWithError("a row's gradients do not cancel");
}
BENCHMARK(layer_norm_backward)->UseManualTime();

void rms_norm(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 12, kElements, [&](kernels::Parallel& parallel) {
    kernels::rms_norm(parallel, t.in(), t.w.data(), 1e-5, t.result(), t.row_scale.data());
  });
  if (std::abs(t.out[7] - t.x[7] * t.row_scale[0]) > 1e-6) state.SkipWithError("a row is not scaled by its norm");
}
BENCHMARK(rms_norm)->UseManualTime();

void residual(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 16, kElements,
                 [&](kernels::Parallel& parallel) { kernels::add(parallel, t.in(), t.gradient(), t.result()); });
  if (t.out[9] != t.x[9] + t.dy[9]) state.SkipWithError("not the sum");
}
BENCHMARK(residual)->UseManualTime();

void gradient_sum(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 12, kElements,
                 [&](kernels::Parallel& parallel) { kernels::accumulate(parallel, t.gradient(), t.result()); });
}
BENCHMARK(gradient_sum)->UseManualTime();

void add_bias(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 8, kElements,
                 [&](kernels::Parallel& parallel) { kernels::add_bias(parallel, t.result(), t.b.data()); });
}
BENCHMARK(add_bias)->UseManualTime();

void bias_gradient(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 4, kElements,
                 [&](kernels::Parallel& parallel) { kernels::bias_gradient(parallel, t.gradient(), t.sum.data()); });
  double sum = 0;
  for (std::int64_t i = 0; i < kRows; ++i) sum += t.dy[static_cast<std::size_t>(i * kCols)];
  if (std::abs(sum - t.sum[0]) > 1e-2) state.SkipWithError("not the sum of a column");
}
BENCHMARK(bias_gradient)->UseManualTime();

void gelu(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 12, kElements,
                 [&](kernels::Parallel& parallel) { kernels::gelu_new(parallel, t.in(), t.result()); });
}
BENCHMARK(gelu)->UseManualTime();

void gelu_backward(benchmark::State& state) {
  Tensors& t = tensors();
  through_memory(state, 16, kElements, [&](kernels::Parallel& parallel) {
    kernels::gelu_new_backward(parallel, t.in(), t.gradient(), t.result());
  });
}
BENCHMARK(gelu_backward)->UseManualTime();

void adamw(benchmark::State& state) {
  Tensors& t = tensors();
  std::vector<float> first(static_cast<std::size_t>(kElements)), second(first);
  const std::vector<float> before = t.out;
  through_memory(state, 28, kElements, [&](kernels::Parallel& parallel) {
    kernels::adamw_update(parallel, {.lr = 1e-3}, t.dy, t.out, first, second);
  });
  if (before[11] == t.out[11]) state.SkipWithError("nothing was updated");
}
BENCHMARK(adamw)->UseManualTime();

void square_norm(benchmark::State& state) {
  Tensors& t = tensors();
  double norm = 0;
  through_memory(state, 4, kElements,
                 [&](kernels::Parallel& parallel) { norm = kernels::sum_squares(parallel, t.dy); });
  if (std::abs(norm / kElements - 1.0 / 12) > 1e-3) state.SkipWithError("not the variance of uniform numbers");
}
BENCHMARK(square_norm)->UseManualTime();

void cross_entropy(benchmark::State& state) {
  Tensors& t = tensors();
  const std::vector<std::int32_t> targets(kRows, 5);
  double loss = 0;
  through_memory(state, 8, kElements, [&](kernels::Parallel& parallel) {
    loss = kernels::cross_entropy_backward(parallel, t.result(), targets, 1.0F);
  });
  if (!(loss > 0)) state.SkipWithError("no loss");
}
BENCHMARK(cross_entropy)->UseManualTime();

// A pair of attention on one core, beside the peak: FLOP of the causal half only.
void attention(benchmark::State& state) {
  const kernels::PairShape shape{1, state.range(0), state.range(1)};
  const std::int64_t size = shape.seq * shape.head_dim;
  const std::vector<float> q = random_floats(size, 5), k = random_floats(size, 6), v = random_floats(size, 7);
  std::vector<float> o(static_cast<std::size_t>(size)), dq(o), dk(o), dv(o);
  const bool backward = state.range(2) != 0;
  const Bytes bytes = backward ? kernels::attention_backward_scratch(shape) : kernels::attention_forward_scratch(shape);
  std::vector<float> scratch(static_cast<std::size_t>(bytes.value()) / sizeof(float) + 1);
  std::vector<double> times;
  for (auto _ : state) {
    const double start = seconds_now();
    if (backward) {
      kernels::attention_backward(shape, q.data(), k.data(), v.data(), o.data(), dq.data(), dk.data(), dv.data(),
                                  scratch);
    } else {
      kernels::attention_forward(shape, q.data(), k.data(), v.data(), o.data(), scratch);
    }
    times.push_back(seconds_now() - start);
    state.SetIterationTime(times.back());
  }
  if (!backward && std::abs(o[0] - v[0]) > 1e-6) state.SkipWithError("the first row does not attend to itself alone");
  const double flops = (backward ? 5.0 : 2.0) * static_cast<double>(shape.seq * shape.seq * shape.head_dim);
  state.counters["GFLOP/s"] = flops / bench::median(times) / 1e9;
  state.counters["of_peak"] = flops / bench::median(times) / bench::peak_flops();
}
BENCHMARK(attention)
    ->ArgNames({"seq", "head_dim", "backward"})
    ->Args({256, 64, 0})
    ->Args({256, 64, 1})
    ->Args({1024, 64, 0})
    ->Args({1024, 64, 1})
    ->Args({1024, 128, 0})
    ->Args({1024, 128, 1})
    ->UseManualTime();

}  // namespace

BENCHMARK_MAIN();
