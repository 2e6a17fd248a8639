// Products beside BLIS called directly and the processor's peak; the server's kernels beside its memory.
//
//   build/release/bench/kernels_bench [--benchmark_filter=...]
//
// Each product is timed in turns with BLIS on the same operands, and the ratio is the median of the turns; each kernel
// counts the bytes that it must read and write, and is set beside STREAM's triad on as many threads. Every benchmark
// checks its answer.
#include <benchmark/benchmark.h>
#include <blis.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/random.hpp"
#include "cleave/kernels/activations.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/optimizer.hpp"
#include "kernels/micro_kernel.hpp"
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
  std::vector<double> ours, ratios;
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

// The micro-kernel alone on every processor at once, on operands in the caches: what a step's products take at least.
void micro_kernel(benchmark::State& state) {
  const kernels::MicroKernel& kernel = kernels::MicroKernel::selected();
  constexpr std::int64_t kTiles = 16;
  const std::int64_t left = kTiles * kernel.mr * kernel.kc, right = kernel.nr * kernel.kc, beyond = 1024;
  Block memory(static_cast<std::size_t>(left + right + beyond) * sizeof(float));  // panels are aligned to cache lines
  float *const a = reinterpret_cast<float*>(memory.data()), *const b = a + left;
  std::fill_n(a, left, 0.5F);
  std::fill_n(b, right + beyond, 2.0F);
  std::vector<float> c(static_cast<std::size_t>(kTiles * kernel.mr * kernel.nr));
  const std::int64_t row_stride = kernel.by_rows ? kernel.nr : 1, col_stride = kernel.by_rows ? 1 : kernel.mr;
  for (auto _ : state)
    for (std::int64_t tile = 0; tile < kTiles; ++tile) {
      const float* const panel = a + tile * kernel.mr * kernel.kc;
      kernel(kernel.mr, kernel.nr, kernel.kc, panel, b, false, c.data() + tile * kernel.mr * kernel.nr, row_stride,
             col_stride, panel, b);
    }
  for (const float value : c)
    if (value != static_cast<float>(kernel.kc)) state.SkipWithError("the product is wrong");
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(kTiles * kernel.mr * kernel.nr * kernel.kc * state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(micro_kernel)->Threads(static_cast<int>(std::thread::hardware_concurrency()))->UseRealTime()->MinTime(2);

constexpr std::int64_t kRows = 8192, kCols = 4096, kElements = kRows * kCols;

bench::LargeArray large_array(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// What the server's kernels work on: far more than fits the caches. Row i of x is what the checks look at.
struct Tensors {
  bench::LargeArray x = large_array(random_floats(kElements, 3)), dy = large_array(random_floats(kElements, 4)),
                    out = x;
  bench::LargeArray first = bench::LargeArray(x.size()), second = first;  // moments
  std::vector<float> w = std::vector<float>(kCols, 1.0F), b = std::vector<float>(kCols, 0.5F), dw = b, db = b;
  std::vector<float> mean = std::vector<float>(kRows), scale = mean;
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(kRows, 5);
  std::vector<std::int16_t> exponents = std::vector<std::int16_t>(std::max(kRows, kCols));
  double sum = 0;

  [[nodiscard]] kernels::ConstRows in() const { return {x.data(), kRows, kCols}; }
  [[nodiscard]] kernels::ConstRows gradient() const { return {dy.data(), kRows, kCols}; }
  kernels::Rows result() { return {out.data(), kRows, kCols}; }
  // Of a row of the result.
  [[nodiscard]] double row_mean(std::int64_t row) const {
    return std::accumulate(out.begin() + row * kCols, out.begin() + (row + 1) * kCols, 0.0) / kCols;
  }
};

// Whether the first exponent is that of `count` numbers of x, `apart` apart.
bool first_exponent_fits(const Tensors& t, std::int64_t count, std::int64_t apart) {
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i) squares += std::pow(t.x[static_cast<std::size_t>(i * apart)], 2);
  return t.exponents[0] == std::ceil(std::log2(std::sqrt(squares)));
}

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

// A kernel of the server. `bytes`: what it must read and write for each element, what is only written counting twice,
// as in the triad. `right`: whether one run over out = x gave what it should.
struct MemoryKernel {
  const char* name;
  double bytes;
  void (*run)(kernels::Parallel&, Tensors&);
  bool (*right)(const Tensors&);
};

constexpr MemoryKernel kMemoryKernels[] = {
    {"layer_norm", 12,
     [](kernels::Parallel& p, Tensors& t) {
       kernels::layer_norm(p, t.in(), t.w.data(), t.b.data(), 1e-5, t.result(), t.mean.data(), t.scale.data());
     },
     [](const Tensors& t) { return near(t.row_mean(9), t.b[0], 1e-4); }},
    {"layer_norm_backward", 16,
     [](kernels::Parallel& p, Tensors& t) {
       kernels::layer_norm_backward(p, t.in(), t.w.data(), t.mean.data(), t.scale.data(), t.gradient(), t.result(),
                                    t.dw.data(), t.db.data());
     },
     [](const Tensors& t) { return near(t.row_mean(9), 0, 1e-5); }},
    {"rms_norm", 12,
     [](kernels::Parallel& p, Tensors& t) {
       kernels::rms_norm(p, t.in(), t.w.data(), 1e-5, t.result(), t.scale.data());
     },
     [](const Tensors& t) { return near(t.out[7], t.x[7] * t.scale[0], 1e-6); }},
    {"residual", 16, [](kernels::Parallel& p, Tensors& t) { kernels::add(p, t.in(), t.gradient(), t.result()); },
     [](const Tensors& t) { return t.out[9] == t.x[9] + t.dy[9]; }},
    {"gradient_sum", 12, [](kernels::Parallel& p, Tensors& t) { kernels::accumulate(p, t.gradient(), t.result()); },
     [](const Tensors& t) { return t.out[9] == t.x[9] + t.dy[9]; }},
    {"add_bias", 8, [](kernels::Parallel& p, Tensors& t) { kernels::add_bias(p, t.result(), t.b.data()); },
     [](const Tensors& t) { return t.out[9] == t.x[9] + t.b[9]; }},
    {"bias_gradient", 4, [](kernels::Parallel& p, Tensors& t) { kernels::bias_gradient(p, t.gradient(), t.db.data()); },
     [](const Tensors& t) {
       double sum = 0;
       for (std::int64_t i = 0; i < kRows; ++i) sum += t.dy[static_cast<std::size_t>(i * kCols)];
       return near(t.db[0], sum, 1e-2);
     }},
    {"gelu", 12, [](kernels::Parallel& p, Tensors& t) { kernels::gelu_new(p, t.in(), t.result()); },
     [](const Tensors& t) { return near(t.out[9], gelu_of(t.x[9]), 1e-6); }},
    {"gelu_backward", 16,
     [](kernels::Parallel& p, Tensors& t) { kernels::gelu_new_backward(p, t.in(), t.gradient(), t.result()); },
     [](const Tensors& t) {
       constexpr double kStep = 1e-4;
       const double slope = (gelu_of(t.x[9] + kStep) - gelu_of(t.x[9] - kStep)) / (2 * kStep);
       return near(t.out[9], t.dy[9] * slope, 1e-6);
     }},
    {"adamw", 28,
     [](kernels::Parallel& p, Tensors& t) { kernels::adamw_update(p, {.lr = 1e-3}, t.dy, t.out, t.first, t.second); },
     // The first step goes by the learning rate against the gradient's sign, whatever its size.
     [](const Tensors& t) { return near(t.out[9], t.x[9] - std::copysign(1e-3, t.dy[9]), 1e-6); }},
    {"square_norm", 4, [](kernels::Parallel& p, Tensors& t) { t.sum = kernels::sum_squares(p, t.dy); },
     [](const Tensors& t) { return near(t.sum / kElements, 1.0 / 12, 1e-3); }},  // of uniform numbers
    {"row_exponents", 4,
     [](kernels::Parallel& p, Tensors& t) {
       (void)kernels::norm_exponents(p, {t.x.data(), kCols}, kRows, kCols, t.exponents);
     },
     [](const Tensors& t) { return first_exponent_fits(t, kCols, 1); }},
    {"column_exponents", 4,
     [](kernels::Parallel& p, Tensors& t) {
       (void)kernels::norm_exponents(p, kernels::ConstMatrix(t.x.data(), kCols).transposed(), kCols, kRows,
                                     t.exponents);
     },
     [](const Tensors& t) { return first_exponent_fits(t, kRows, kCols); }},
    {"cross_entropy", 8,
     [](kernels::Parallel& p, Tensors& t) { t.sum = kernels::cross_entropy_backward(p, t.result(), t.targets, 1.0F); },
     [](const Tensors& t) { return t.sum > 0 && near(t.row_mean(9) * kCols, 0, 1e-4); }},
};

// On all cores, in turns with STREAM's triad. Each turn of the kernel is set beside the turns of the triad right before
// and right after it, so that a memory that others slow down for a while slows both alike. One that only reads is set
// beside plain reading too, which is all that it could do: the triad's writes are under way while it reads.
void through_memory(benchmark::State& state, const MemoryKernel& kernel) {
  static Tensors tensors;
  static bench::Memory memory;
  kernels::Parallel parallel(static_cast<int>(std::thread::hardware_concurrency()));
  const bool only_reads = kernel.bytes == sizeof(float);
  std::vector<double> rates, of_triad, of_reading;
  const auto reading = [&] { return only_reads ? memory.reading(parallel) : 1; };
  kernel.run(parallel, tensors);
  double triad_before = memory.triad(parallel), reading_before = reading();
  for (auto _ : state) {
    const double start = seconds_now();
    kernel.run(parallel, tensors);
    const double seconds = seconds_now() - start, rate = kernel.bytes * static_cast<double>(kElements) / seconds;
    const double reading_after = reading(), triad_after = memory.triad(parallel);
    rates.push_back(rate);
    of_triad.push_back(rate * (1 / triad_before + 1 / triad_after) / 2);
    of_reading.push_back(rate * (1 / reading_before + 1 / reading_after) / 2);
    triad_before = triad_after;
    reading_before = reading_after;
    state.SetIterationTime(seconds);
  }
  tensors.out = tensors.x;
  std::fill(tensors.first.begin(), tensors.first.end(), 0.0F);
  std::fill(tensors.second.begin(), tensors.second.end(), 0.0F);
  kernel.run(parallel, tensors);
  if (!kernel.right(tensors)) state.SkipWithError("a wrong answer");
  state.counters["GB/s"] = bench::median(rates) / 1e9;
  state.counters["of_memory"] = bench::median(of_triad);
  if (only_reads) state.counters["of_reading"] = bench::median(of_reading);
}

// A pair of attention on one core, beside the peak: FLOP of the causal half only.
void attention(benchmark::State& state) {
  const kernels::PairShape shape{1, state.range(0), state.range(1)};
  const std::int64_t size = shape.seq * shape.head_dim;
  const std::vector<float> q = random_floats(size, 5), k = random_floats(size, 6), v = random_floats(size, 7),
                           d_o = random_floats(size, 8);
  std::vector<float> o(static_cast<std::size_t>(size)), dq(o), dk(o), dv(o);
  const bool backward = state.range(2) != 0;
  const Bytes bytes = backward ? kernels::attention_backward_scratch(shape) : kernels::attention_forward_scratch(shape);
  std::vector<float> scratch(static_cast<std::size_t>(bytes.value()) / sizeof(float) + 1);
  std::vector<double> times;
  for (auto _ : state) {
    const double start = seconds_now();
    if (backward) {
      kernels::attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), dq.data(), dk.data(), dv.data(),
                                  scratch);
    } else {
      kernels::attention_forward(shape, q.data(), k.data(), v.data(), o.data(), scratch);
    }
    times.push_back(seconds_now() - start);
    state.SetIterationTime(times.back());
  }
  if (!backward && !near(o[0], v[0], 1e-6)) state.SkipWithError("the first row does not attend to itself alone");
  // Rows of probabilities add up to 1, so that dV and dO have the same column sums.
  const auto column = [&](const std::vector<float>& of) {
    double sum = 0;
    for (std::int64_t i = 0; i < size; i += shape.head_dim) sum += of[static_cast<std::size_t>(i)];
    return sum;
  };
  if (backward && !near(column(dv), column(d_o), 1e-3)) state.SkipWithError("dV and dO have other column sums");
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

int main(int argc, char** argv) {
  for (const MemoryKernel& kernel : kMemoryKernels)
    benchmark::RegisterBenchmark(kernel.name, through_memory, kernel)->UseManualTime()->MinTime(1.0);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
