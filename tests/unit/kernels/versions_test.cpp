// Every kernel gives the same bits with every level of instructions that this processor offers, for rows that fill
// vectors and rows that do not: what the processor has beyond its matrix kernels shows in no parameter.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "cleave/base/processor.hpp"
#include "cleave/kernels/activations.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/copy.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/optimizer.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/wire.hpp"
#include "row_ops.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using testing_tools::append;
using testing_tools::Floats;
using testing_tools::noise;

// Numbers of two tensors and vectors beside them, and where a kernel writes.
struct Tensors {
  std::int64_t rows, cols;
  Floats x = noise(rows * cols, 1), dy = noise(rows * cols, 2), w = noise(cols, 3), b = noise(cols, 4);
  Floats out = x, other = noise(rows * cols, 5, 1e-3), squares = Floats(x.size(), 1e-4F);
  Floats mean = noise(rows, 6), scale = noise(rows, 7, 0.1, 1), dw = Floats(w.size()), db = dw;
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0);
  std::vector<std::uint16_t> halves = std::vector<std::uint16_t>(x.size());
  double sum = 0;
  Parallel parallel{1};

  Tensors(std::int64_t r, std::int64_t c) : rows(r), cols(c) {}
  [[nodiscard]] ConstRows in() const { return {x.data(), rows, cols}; }
  [[nodiscard]] ConstRows gradient() const { return {dy.data(), rows, cols}; }
  Rows result() { return {out.data(), rows, cols}; }
  Rows second() { return {other.data(), rows, cols}; }
  // Everything that may have been written.
  [[nodiscard]] Floats written() const {
    Floats all = out;
    for (const Floats* more : {&other, &squares, &mean, &scale, &dw, &db}) append(all, *more);
    for (const std::uint16_t half : halves) all.push_back(half);
    std::array<float, 2> bits{};
    std::memcpy(bits.data(), &sum, sizeof sum);
    all.insert(all.end(), bits.begin(), bits.end());
    return all;
  }
};

struct Kernel {
  const char* name;
  void (*run)(Tensors&);
};

constexpr Kernel kKernels[] = {
    {"gelu", [](Tensors& t) { gelu_new(t.parallel, t.in(), t.result()); }},
    {"gelu backward", [](Tensors& t) { gelu_new_backward(t.parallel, t.in(), t.gradient(), t.result()); }},
    {"relu", [](Tensors& t) { relu(t.parallel, t.in(), t.result()); }},
    {"relu backward", [](Tensors& t) { relu_backward(t.parallel, t.in(), t.gradient(), t.result()); }},
    {"swiglu", [](Tensors& t) { swiglu(t.parallel, t.in(), t.gradient(), t.result()); }},
    {"swiglu backward",
     [](Tensors& t) {
       const Floats up = noise(t.rows * t.cols, 8);
       swiglu_backward(t.parallel, t.in(), {up.data(), t.rows, t.cols}, t.gradient(), t.result(), t.second());
     }},
    {"layer norm",
     [](Tensors& t) {
       layer_norm(t.parallel, t.in(), t.w.data(), t.b.data(), 1e-5, t.result(), t.mean.data(), t.scale.data());
     }},
    {"layer norm backward",
     [](Tensors& t) {
       layer_norm_backward(t.parallel, t.in(), t.w.data(), t.mean.data(), t.scale.data(), t.gradient(), t.result(),
                           t.dw.data(), t.db.data());
     }},
    {"rms norm", [](Tensors& t) { rms_norm(t.parallel, t.in(), t.w.data(), 1e-5, t.result(), t.scale.data()); }},
    {"rms norm backward",
     [](Tensors& t) {
       rms_norm_backward(t.parallel, t.in(), t.w.data(), t.scale.data(), t.gradient(), t.result(), t.dw.data());
     }},
    {"residual", [](Tensors& t) { add(t.parallel, t.in(), t.gradient(), t.result()); }},
    {"gradient sum", [](Tensors& t) { accumulate(t.parallel, t.gradient(), t.result()); }},
    {"bias", [](Tensors& t) { add_bias(t.parallel, t.result(), t.b.data()); }},
    {"bias gradient", [](Tensors& t) { bias_gradient(t.parallel, t.gradient(), t.db.data()); }},
    {"rope",
     [](Tensors& t) {
       const RopeTable table(t.rows, t.cols / 2 * 2, 10000);
       rope(t.parallel, table, Rotate::forward, t.result().columns(0, t.cols / 2 * 2));
     }},
    {"loss", [](Tensors& t) { t.sum = cross_entropy(t.parallel, t.in(), t.targets); }},
    {"loss backward", [](Tensors& t) { t.sum = cross_entropy_backward(t.parallel, t.result(), t.targets, 0.5F); }},
    {"square norm", [](Tensors& t) { t.sum = sum_squares(t.parallel, t.dy); }},
    {"adamw", [](Tensors& t) { adamw_update(t.parallel, {.lr = 1e-3}, t.dy, t.out, t.other, t.squares); }},
    {"bf16",
     [](Tensors& t) {
       narrow(DType::bf16, t.in(), t.halves.data(), t.cols);
       widen(DType::bf16, t.halves.data(), t.cols, t.result());
       round_to(DType::bf16, t.second());
     }},
    {"fp16",
     [](Tensors& t) {
       narrow(DType::f16, t.in(), t.halves.data(), t.cols);
       widen(DType::f16, t.halves.data(), t.cols, t.result());
       round_to(DType::f16, t.second());
     }},
    {"mxint8",
     [](Tensors& t) {
       std::vector<std::byte> sent(static_cast<std::size_t>(t.rows * row_bytes(DType::mxint8, t.cols)));
       to_wire(DType::mxint8, t.in(), sent.data());
       from_wire(DType::mxint8, sent.data(), t.result());
       round_to(DType::mxint8, t.second());
     }},
    {"copies",
     [](Tensors& t) {
       copy_past_caches(t.gradient(), t.out.data());
       t.sum = copy_finite_rows(t.dy.data(), t.second()) ? 1 : 0;
     }},
    {"norm exponents",
     [](Tensors& t) {
       std::vector<std::int16_t> of_rows(static_cast<std::size_t>(t.rows)), of_columns(t.w.size());
       (void)norm_exponents(t.parallel, {t.x.data(), t.cols}, t.rows, t.cols, of_rows);
       (void)norm_exponents(t.parallel, ConstMatrix(t.x.data(), t.cols).transposed(), t.cols, t.rows, of_columns);
       std::copy(of_rows.begin(), of_rows.end(), t.mean.begin());
       std::copy(of_columns.begin(), of_columns.end(), t.dw.begin());
     }},
};

Floats run(const Kernel& kernel, Instructions level, std::int64_t rows, std::int64_t cols) {
  const HideInstructions hide(level);
  Tensors tensors(rows, cols);
  kernel.run(tensors);
  return tensors.written();
}

TEST(Versions, OfEveryServerKernelGiveTheSameBits) {
  for (const Kernel& kernel : kKernels) {
    for (const auto& [rows, cols] : {std::pair{5, 2}, {3, 17}, {70, 64}, {33, 530}, {5, 1543}}) {
      const Floats expected = run(kernel, Instructions::baseline, rows, cols);
      for (const Instructions level : levels_to_try())
        EXPECT_TRUE(testing_tools::same_bits(run(kernel, level, rows, cols), expected))
            << kernel.name << ", " << rows << " x " << cols << ", " << name_of(level);
    }
  }
}

TEST(Versions, OfTheLargestElementPassOverNaNAndTheSignOfZero) {
  const float low = -std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    for (const std::int64_t n : {0, 1, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 100, 127, 129}) {
      for (std::int64_t where = 0; where < n; ++where) {
        Floats x = noise(n, 8);
        x[static_cast<std::size_t>(where)] = 70;
        if (n > 1) x[static_cast<std::size_t>((where + 1) % n)] = nan;
        ASSERT_EQ(largest_of_row(x.data(), n), 70) << name_of(level) << ", " << where << " of " << n;
        Floats zeros(static_cast<std::size_t>(n), -0.0F);
        zeros[static_cast<std::size_t>(where)] = 0.0F;
        ASSERT_FALSE(std::signbit(largest_of_row(zeros.data(), n))) << name_of(level);
      }
      const Floats negative(static_cast<std::size_t>(n), low), none(static_cast<std::size_t>(n), nan);
      EXPECT_EQ(largest_of_row(negative.data(), n), low);
      EXPECT_EQ(largest_of_row(none.data(), n), low);
      EXPECT_FALSE(n > 0 && std::signbit(largest_of_row(Floats(negative.size(), -0.0F).data(), n)));
    }
  }
}

// The micro-kernel stays what it was; packing, norms, scaled integers and softmax around it change.
Floats product(GemmShape s, bool transposed, DType sums) {
  const Floats a = noise(s.m * s.k, 10), b = noise(s.k * s.n, 11);
  const ConstMatrix left = transposed ? ConstMatrix(a.data(), s.m).transposed() : ConstMatrix(a.data(), s.k);
  const ConstMatrix right = transposed ? ConstMatrix(b.data(), s.k).transposed() : ConstMatrix(b.data(), s.n);
  Floats c(static_cast<std::size_t>(s.m * s.n));
  std::vector<std::int16_t> rows(static_cast<std::size_t>(s.m)), columns(static_cast<std::size_t>(s.n));
  Parallel parallel(1);
  EXPECT_EQ(norm_exponents(parallel, left, s.m, s.k, rows), ProductStatus::ok);
  EXPECT_EQ(norm_exponents(parallel, right.transposed(), s.n, s.k, columns), ProductStatus::ok);
  EXPECT_EQ(multiply_whole(parallel, s, left, right, rows, columns, sums, Matrix(c.data(), s.n)), ProductStatus::ok);
  return c;
}

Floats attention(PairShape shape) {
  const std::int64_t size = shape.seq * shape.head_dim;
  const Floats q = noise(shape.heads * size, 12), k = noise(size, 13), v = noise(size, 14),
               d_o = noise(shape.heads * size, 15);
  Floats o(q.size()), dq(o), dk(k.size()), dv(dk);
  const Bytes most = std::max(attention_forward_scratch(shape), attention_backward_scratch(shape));
  Floats scratch(static_cast<std::size_t>(most.value()) / sizeof(float) + 1);
  attention_forward(shape, q.data(), k.data(), v.data(), o.data(), scratch);
  attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), dq.data(), dk.data(), dv.data(), scratch);
  for (const Floats* more : {&dq, &dk, &dv}) append(o, *more);
  return o;
}

// Small sums, and such that need more than 32 bits.
Floats token_sums(DType wire, double size) {
  const std::int64_t seq = 100, sequences = 9, m = 31, n = 45;
  const Floats a = noise(sequences * seq * m, 16, size), b = noise(sequences * seq * n, 17);
  const ConstMatrix left = ConstMatrix(a.data(), m).transposed(), right(b.data(), n);
  const TokenRun tokens{seq, 0, {wire, wire == DType::f16 ? 3 : 0}};
  Parallel parallel(1);
  TokenSumMatrix sums(m, n, tokens.unit);
  EXPECT_EQ(sums.add_product(parallel, sequences * seq, left, right, tokens), ProductStatus::ok);
  sums.add(parallel, sums.whole(),
           {DType::i64, std::vector<std::int64_t>(static_cast<std::size_t>(m * n), 12345).data(), n});
  Floats c(static_cast<std::size_t>(m * n)), whole = c;
  EXPECT_EQ(sums.finish(parallel, sums.whole(), {c.data(), n}), ProductStatus::ok);
  EXPECT_EQ(multiply_all_tokens(parallel, {m, n, sequences * seq}, left, right, tokens, {whole.data(), n}),
            ProductStatus::ok);
  append(c, whole);
  return c;
}

TEST(Versions, AroundTheMicroKernelGiveTheSameBits) {
  const auto all = [] {
    Floats results;
    for (const GemmShape shape : {GemmShape{37, 29, 100}, {100, 50, 1600}, {20, 33, 3100}, {16, 21, 6200}})
      for (const bool transposed : {false, true})
        for (const DType sums : {DType::i32, DType::i64}) append(results, product(shape, transposed, sums));
    for (const PairShape shape : {PairShape{1, 50, 8}, {2, 130, 8}}) append(results, attention(shape));
    for (const DType wire : {DType::f32, DType::bf16, DType::f16})
      for (const double size : {1e-3, 0.1, 300.0})
        if (wire != DType::f32 || size < 1) append(results, token_sums(wire, size));
    return results;
  };
  const Floats expected = all();
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    EXPECT_TRUE(testing_tools::same_bits(all(), expected)) << name_of(level);
  }
}

}  // namespace
}  // namespace cleave::kernels
