// Canonical products: right to rounding, and the same bits for any cut, storage order and number of threads, with every
// family of kernels that this processor can run. A process keeps its family, so each runs in a process of its own.
#include "cleave/kernels/gemm.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/processor.hpp"
#include "cleave/base/random.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "micro_kernel.hpp"

namespace cleave::kernels {
namespace {

using Exponents = std::vector<std::int16_t>;

/// Row-major or column-major storage inside a wider buffer.
struct StoredMatrix {
  std::vector<float> memory;
  Matrix view;
  StoredMatrix(std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t gap = 0)
      : memory(static_cast<std::size_t>((rows + gap) * (cols + gap)), -7.0f) {
    view = transposed ? Matrix(memory.data(), 1, rows + gap) : Matrix(memory.data(), cols + gap, 1);
  }
  StoredMatrix(const StoredMatrix&) = delete;
};

void fill(Matrix x, std::int64_t rows, std::int64_t cols, std::uint32_t stream, bool rough) {
  const Random random(7, Purpose::test, stream);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const auto index = static_cast<std::uint64_t>(i * cols + j);
      double value = 2 * random.uniform(index) - 1;
      if (rough) value *= std::exp2(static_cast<double>(i * 7 % 41 - 20 + j * 5 % 23 - 11));
      x(i, j) = static_cast<float>(value);
    }
}

struct Problem {
  GemmShape shape;
  StoredMatrix a, b;
  Exponents e, f;
  Problem(GemmShape s, bool ta, bool tb, bool rough)
      : shape(s),
        a(s.m, s.k, ta, 3),
        b(s.k, s.n, tb, 2),
        e(static_cast<std::size_t>(s.m)),
        f(static_cast<std::size_t>(s.n)) {
    fill(a.view, s.m, s.k, 1, rough);
    fill(b.view, s.k, s.n, 2, rough);
    Parallel one;
    if (norm_exponents(one, a.view, s.m, s.k, e) != ProductStatus::ok ||
        norm_exponents(one, b.view.transposed(), s.n, s.k, f) != ProductStatus::ok)
      throw std::runtime_error("exponents");
  }
  ProductStatus whole(Parallel& parallel, DType type, Matrix c) const {
    return multiply_whole(parallel, shape, a.view, b.view, e, f, type, c);
  }
};

/// Counts failures, so that a child process can report by its exit code.
struct Failures {
  int count = 0;
  void expect(bool good, const std::string& what) {
    if (good) return;
    ++count;
    std::fprintf(stderr, "failed: %s\n", what.c_str());
  }
};

bool same_bits(Matrix x, Matrix y, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      if (std::bit_cast<std::uint32_t>(x(i, j)) != std::bit_cast<std::uint32_t>(y(i, j))) return false;
  return true;
}

/// Cuts [0,n) at random multiples of `unit`.
std::vector<std::int64_t> cuts(std::int64_t n, std::int64_t unit, const Random& random, std::uint64_t index) {
  std::vector<std::int64_t> at{0};
  while (at.back() < n) {
    const std::uint64_t units = static_cast<std::uint64_t>((n - at.back() + unit - 1) / unit);
    at.push_back(std::min(n, at.back() + unit * static_cast<std::int64_t>(1 + random.below(index++, units))));
  }
  return at;
}

template <class Int>
void check_tilings(Failures& failures, const Problem& p, DType type, std::uint64_t trial) {
  const auto [m, n, k] = p.shape;
  const std::string name = fmt::format("{} x {} x {} {} trial {}", m, n, k, name_of(type), trial);
  Parallel one(1), two(2);
  StoredMatrix c(m, n, false), d(m, n, true, 1);
  failures.expect(p.whole(one, type, c.view) == ProductStatus::ok, name + ": whole");
  failures.expect(p.whole(two, type, d.view) == ProductStatus::ok, name + ": whole, 2 threads");
  failures.expect(same_bits(c.view, d.view, m, n), name + ": transposed C, 2 threads");

  BlockPool pool;
  const PackedOperand packed(two, p.b.view, k, n, pool);
  StoredMatrix g(m, n, false, 2);
  for (Parallel* const threads : {&one, &two}) {
    failures.expect(multiply_whole(*threads, m, p.a.view, packed, p.e, p.f, type, g.view) == ProductStatus::ok,
                    name + ": B packed");
    failures.expect(same_bits(c.view, g.view, m, n), name + ": B packed");
  }

  // Tiles of whole k, each computed by itself from operands copied into other storage.
  const Random random(trial, Purpose::test, 3);
  const auto rows = cuts(m, 1, random, 0), cols = cuts(n, 1, random, 1000), depths = cuts(k, kBlockK, random, 2000);
  StoredMatrix e(m, n, false);
  std::vector<Int> sums(static_cast<std::size_t>(m * n));
  for (std::size_t r = 0; r + 1 < rows.size(); ++r)
    for (std::size_t s = 0; s + 1 < cols.size(); ++s) {
      const std::int64_t i0 = rows[r], i1 = rows[r + 1], j0 = cols[s], j1 = cols[s + 1];
      StoredMatrix a(i1 - i0, k, (r + trial) % 2 == 0), b(k, j1 - j0, (s + trial) % 2 == 1);
      for (std::int64_t i = i0; i < i1; ++i)
        for (std::int64_t t = 0; t < k; ++t) a.view(i - i0, t) = p.a.view(i, t);
      for (std::int64_t t = 0; t < k; ++t)
        for (std::int64_t j = j0; j < j1; ++j) b.view(t, j - j0) = p.b.view(t, j);
      const auto row_exponents = std::span(p.e).subspan(i0, i1 - i0),
                 col_exponents = std::span(p.f).subspan(j0, j1 - j0);
      failures.expect(multiply_whole(one, {i1 - i0, j1 - j0, k}, a.view, b.view, row_exponents, col_exponents, type,
                                     e.view.from(i0, j0)) == ProductStatus::ok,
                      name + ": tile");
      if (k_blocks(k) == 1) continue;
      // The same tile as runs of K blocks, last run first: odd runs into a sum of their own, even ones into one place.
      const PartialSums place{type, sums.data() + i0 * n + j0, n};
      std::vector<Int> run(static_cast<std::size_t>((i1 - i0) * (j1 - j0)));
      for (std::size_t z = depths.size() - 1; z-- > 0;) {
        const std::int64_t k0 = depths[z], k1 = depths[z + 1];
        const GemmShape box{i1 - i0, j1 - j0, k1 - k0};
        const bool first = z + 2 == depths.size();
        if (z % 2 == 0 || first) {
          failures.expect(multiply_box(two, box, a.view.from(0, k0), b.view.from(k0, 0), row_exponents, col_exponents,
                                       place, first ? Accumulate::no : Accumulate::yes) == ProductStatus::ok,
                          name + ": box");
        } else {
          const PartialSums own{type, run.data(), j1 - j0};
          failures.expect(multiply_box(one, box, a.view.from(0, k0), b.view.from(k0, 0), row_exponents, col_exponents,
                                       own) == ProductStatus::ok,
                          name + ": box");
          add_partial_sums(two, i1 - i0, j1 - j0, own, place);
        }
      }
    }
  failures.expect(same_bits(c.view, e.view, m, n), name + ": tiles");
  if (k_blocks(k) > 1) {
    StoredMatrix f(m, n, trial % 2 == 0);
    failures.expect(
        finish_partial_sums(two, m, n, PartialSums{type, sums.data(), n}, p.e, p.f, f.view) == ProductStatus::ok,
        name + ": finish");
    failures.expect(same_bits(c.view, f.view, m, n), name + ": boxes");
  }
}

void check_accuracy(Failures& failures, const Problem& p, DType type) {
  const auto [m, n, k] = p.shape;
  Parallel one;
  StoredMatrix c(m, n, false);
  failures.expect(p.whole(one, type, c.view) == ProductStatus::ok, "accuracy: whole");
  // |error| <= (block rounding + quantisation + final rounding) * |A_i| |B_j|; 2^e may be twice the norm.
  const double quantum = type == DType::i32 ? static_cast<double>(k_blocks(k)) * 0.5 * std::exp2(-29) * 4 : 0;
  const double bound = 4 * std::exp2(-24) * std::sqrt(static_cast<double>(std::min(k, kBlockK))) + quantum;
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double exact = 0, row = 0, col = 0;
      for (std::int64_t t = 0; t < k; ++t) {
        const double x = p.a.view(i, t), y = p.b.view(t, j);
        exact += x * y;
        row += x * x;
        col += y * y;
      }
      worst = std::max(worst, std::abs(c.view(i, j) - exact) / std::sqrt(row * col));
    }
  failures.expect(worst <= bound, fmt::format("error {} above {} at k {} {}", worst, bound, k, name_of(type)));
}

void check_non_finite(Failures& failures) {
  Parallel one;
  for (const std::int64_t k : {40, 1600})
    for (const float evil : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const DType type : {DType::i32, DType::i64}) {
        Problem p({20, 30, k}, false, false, false);
        p.b.view(k - 1, 17) = evil;
        StoredMatrix c(20, 30, false);
        failures.expect(p.whole(one, type, c.view) == ProductStatus::not_representable, "non-finite operand");
        Exponents f(30);
        failures.expect(norm_exponents(one, p.b.view.transposed(), 30, k, f) == ProductStatus::not_representable,
                        "exponents of non-finite column");
      }
  // Finite operands whose products overflow fp32.
  Problem p({4, 4, 1600}, false, false, false);
  for (std::int64_t t = 0; t < 1600; ++t) p.a.view(2, t) = p.b.view(t, 1) = 3e37f;
  Parallel parallel;
  (void)norm_exponents(parallel, p.a.view, 4, 1600, p.e);
  (void)norm_exponents(parallel, p.b.view.transposed(), 4, 1600, p.f);
  StoredMatrix c(4, 4, false);
  failures.expect(p.whole(one, DType::i64, c.view) == ProductStatus::not_representable, "overflow");
  // Exponents that are too small for the data.
  Problem q({4, 4, 1600}, false, false, false);
  for (auto& e : q.e) e = static_cast<std::int16_t>(e - 12);
  failures.expect(q.whole(one, DType::i32, c.view) == ProductStatus::not_representable, "wrong exponents");
}

// A product of any size has the bits of a larger one's corner: a micro-tile that is not full adds as a full one does.
void check_edges(Failures& failures) {
  constexpr std::int64_t kRows = 13, kColumns = 33, kDepth = 700;
  const Problem p({96, 96, kDepth}, false, false, false);
  StoredMatrix once(96, 96, false), twice(96, 96, false);
  gemm_block(p.shape, p.a.view, p.b.view, once.view);
  gemm_block(p.shape, p.a.view, p.b.view, twice.view);
  gemm_block(p.shape, p.a.view, p.b.view, twice.view, Accumulate::yes);
  for (std::int64_t m = 1; m <= kRows; ++m)
    for (std::int64_t n = 1; n <= kColumns; ++n) {
      StoredMatrix c(m, n, false, 1);
      gemm_block({m, n, kDepth}, p.a.view, p.b.view, c.view);
      failures.expect(same_bits(c.view, once.view, m, n), fmt::format("{} x {}", m, n));
      gemm_block({m, n, kDepth}, p.a.view, p.b.view, c.view, Accumulate::yes);
      failures.expect(same_bits(c.view, twice.view, m, n), fmt::format("{} x {}, added", m, n));
      const bool untouched =
          std::ranges::all_of(c.memory.end() - n - 1, c.memory.end(), [](float x) { return x == -7; });
      failures.expect(untouched && c.memory[static_cast<std::size_t>(n)] == -7, fmt::format("beyond {} x {}", m, n));
    }
}

/// One K block is, element by element, a chain of fused multiply-adds in the order of depth, in runs of `kc` that are
/// added up in order (docs/wire_format.md, "What a result holds"). The generic kernels fuse nothing.
void check_order(Failures& failures, std::int64_t kc) {
  const GemmShape shape{37, 29, kBlockK - 5};
  const Problem p(shape, false, true, true);
  StoredMatrix c(shape.m, shape.n, false);
  Parallel one;
  failures.expect(p.whole(one, DType::i64, c.view) == ProductStatus::ok, "order: whole");
  for (std::int64_t i = 0; i < shape.m; ++i)
    for (std::int64_t j = 0; j < shape.n; ++j) {
      float sum = 0;
      for (std::int64_t t = 0; t < shape.k; t += kc) {
        float run = 0;
        for (std::int64_t d = t; d < std::min(shape.k, t + kc); ++d)
          run = std::fma(p.a.view(i, d), p.b.view(d, j), run);
        sum = t == 0 ? run : sum + run;
      }
      if (std::bit_cast<std::uint32_t>(sum) != std::bit_cast<std::uint32_t>(c.view(i, j)))
        return failures.expect(false, fmt::format("order: ({}, {}) is {}, not {}", i, j, c.view(i, j), sum));
    }
}

int run_all(GemmKernels kernels) {
  select_gemm_kernels(kernels);
  Failures failures;
  std::uint64_t trial = 0;
  const GemmShape shapes[] = {{1, 1, 1},       {33, 47, 61},    {130, 513, 1536}, {5, 3, 1537},    {97, 150, 3072},
                              {530, 70, 1600}, {61, 600, 3100}, {100, 120, 5000}, {7, 1100, 4608}, {16, 16, 0}};
  for (const auto& shape : shapes)
    for (const DType type : {DType::i32, DType::i64}) {
      const Problem p(shape, trial % 2 == 1, trial % 3 == 1, trial % 4 >= 2);
      if (type == DType::i32)
        check_tilings<std::int32_t>(failures, p, type, trial);
      else
        check_tilings<std::int64_t>(failures, p, type, trial);
      ++trial;
    }
  for (const std::int64_t k : {100, 1536, 4000, 20000})
    for (const DType type : {DType::i32, DType::i64})
      check_accuracy(failures, Problem({19, 23, k}, false, true, k == 4000), type);
  check_non_finite(failures);
  check_edges(failures);
  constexpr std::int64_t kDepths[] = {0, 256, 384, 512};  // of GemmKernels, as wire_format.md has them
  if (kernels != GemmKernels::generic) check_order(failures, kDepths[static_cast<int>(kernels)]);
  const bool wanted = kernels == GemmKernels::skx && usable_instructions() == Instructions::avx512;
  failures.expect(MicroKernel::selected().has_edges == wanted, "edges do not agree with BLIS");
  return failures.count == 0 ? 0 : 1;
}

class GemmFamilies : public testing::TestWithParam<GemmKernels> {};

TEST_P(GemmFamilies, SameBitsForAnyTilingAndRightToRounding) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, whose BLIS is not yet initialised
  EXPECT_EXIT(std::_Exit(run_all(GetParam())), testing::ExitedWithCode(0), "");
}

std::vector<GemmKernels> families_of_this_processor() {
  std::vector<GemmKernels> families;
  for (const auto kernels : all_gemm_kernels())
    if (is_usable(kernels)) families.push_back(kernels);
  return families;
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmFamilies, testing::ValuesIn(families_of_this_processor()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(NormExponents, BoundTheNormsTightlyForAnyStorage) {
  const std::int64_t rows = 300, depth = 1237;
  StoredMatrix a(rows, depth, false, 5), b(rows, depth, true, 4);
  fill(a.view, rows, depth, 9, true);
  for (std::int64_t t = 0; t < depth; ++t) {
    a.view(11, t) = 0;
    a.view(12, t) = t == 5 ? std::numeric_limits<float>::denorm_min() : 0;
    a.view(13, t) = std::numeric_limits<float>::max();
    a.view(14, t) = t < 4 ? 1.0f : 0.0f;  // norm exactly 2
  }
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t t = 0; t < depth; ++t) b.view(i, t) = a.view(i, t);
  Exponents first(rows), second(rows), third(rows);
  Parallel one(1), three(3);
  ASSERT_EQ(norm_exponents(one, a.view, rows, depth, first), ProductStatus::ok);
  ASSERT_EQ(norm_exponents(three, a.view, rows, depth, second), ProductStatus::ok);
  ASSERT_EQ(norm_exponents(three, b.view, rows, depth, third), ProductStatus::ok);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, third);
  for (std::int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::int64_t t = 0; t < depth; ++t) sum += static_cast<double>(a.view(i, t)) * a.view(i, t);
    if (sum == 0) {
      EXPECT_EQ(first[static_cast<std::size_t>(i)], kZeroExponent);
      continue;
    }
    const double norm = std::sqrt(sum), bound = std::exp2(first[static_cast<std::size_t>(i)]);
    EXPECT_LE(norm, bound) << i;
    EXPECT_GT(norm * 2.0001, bound) << i;
  }
}

/// The definition: squares in double in 16 lanes, which are added in halves, and some room for their rounding.
std::int16_t defined_exponent(ConstMatrix a, std::int64_t row, std::int64_t depth) {
  double lanes[16] = {};
  for (std::int64_t t = 0; t < depth; ++t) lanes[t % 16] += static_cast<double>(a(row, t)) * a(row, t);
  for (int half = 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  if (lanes[0] == 0) return kZeroExponent;
  std::int16_t e = -200;
  while (std::ldexp(1.0, 2 * e) < lanes[0] * (1 + 0x1p-30)) ++e;
  return e;
}

// A sum of squares that is a power of four once room is left for its rounding: the least exponent, and not one more.
TEST(NormExponents, ASumJustBelowAPowerHasItsExponent) {
  std::vector<float> row{19999, 18999, 17650, 1139};  // whose squares add up to 2^30 - 1
  for (float& x : row) x *= 0x1p-15f;
  Exponents exponent(1);
  Parallel one;
  ASSERT_EQ(norm_exponents(one, {row.data(), 4}, 1, 4, exponent), ProductStatus::ok);
  EXPECT_EQ(exponent[0], 0);
}

// Sums so close to a power of four that adding in fp32 cannot tell its side, and those that fp32 does not hold.
TEST(NormExponents, AreThoseOfSumsInDouble) {
  const std::int64_t depth = 900;
  std::vector<double> ratios = {1};
  for (double off = 0x1p-34; off < 0.1; off *= 3) ratios.insert(ratios.end(), {1 + off, 1 - off});
  const std::int64_t near = std::ssize(ratios);
  constexpr std::int64_t kZeros = 30;
  for (const std::int64_t rows : {near, near + kZeros, std::int64_t{256}, std::int64_t{300}, std::int64_t{2501}}) {
    StoredMatrix a(rows, depth, false), b(rows, depth, true);
    std::vector<float> apart(static_cast<std::size_t>(2 * rows * depth));
    const Matrix c(apart.data(), 2 * depth, 2);
    for (std::int64_t i = 0; i < rows; ++i) {
      // The first element brings the sum to the wanted ratio to 4^power, as closely as an fp32 number can.
      const int power = static_cast<int>(i * 5 % 31) - 15;
      const Random random(11, Purpose::test, static_cast<std::uint32_t>(i));
      double rest = 0;
      for (std::int64_t t = 1; t < depth; ++t) {
        const bool zero = i >= near && i < near + kZeros;
        const double x = zero ? 0 : (random.uniform(static_cast<std::uint64_t>(t)) - 0.5) * std::ldexp(0.05, power);
        a.view(i, t) = static_cast<float>(x);
        rest += static_cast<double>(a.view(i, t)) * a.view(i, t);
      }
      const double wanted = std::ldexp(ratios[static_cast<std::size_t>(i % near)], 2 * power) - rest;
      a.view(i, 0) = i >= near && i < near + kZeros ? 0.0F : static_cast<float>(std::sqrt(wanted));
      const float scale = i % 9 == 7 ? 0x1p-60F : i % 9 == 8 ? 0x1p65F : 1.0F;
      for (std::int64_t t = 0; t < depth; ++t) c(i, t) = b.view(i, t) = a.view(i, t) *= scale;
    }
    Parallel one;
    Exponents by_rows(static_cast<std::size_t>(rows)), by_columns(by_rows), by_neither(by_rows);
    ASSERT_EQ(norm_exponents(one, a.view, rows, depth, by_rows), ProductStatus::ok);
    ASSERT_EQ(norm_exponents(one, b.view, rows, depth, by_columns), ProductStatus::ok);
    ASSERT_EQ(norm_exponents(one, c, rows, depth, by_neither), ProductStatus::ok);
    for (std::int64_t i = 0; i < rows; ++i)
      ASSERT_EQ(by_rows[static_cast<std::size_t>(i)], defined_exponent(a.view, i, depth))
          << "row " << i << " of " << rows;
    EXPECT_EQ(by_rows, by_columns);
    EXPECT_EQ(by_rows, by_neither);
  }
}

TEST(GemmKernelsChoice, NamesAndChoices) {
  for (const auto kernels : all_gemm_kernels()) EXPECT_EQ(parse_gemm_kernels(name_of(kernels)), kernels);
  EXPECT_EQ(parse_gemm_kernels("zen"), std::nullopt);
#ifdef __x86_64__
  EXPECT_TRUE(is_usable(GemmKernels::generic));
#endif
  EXPECT_TRUE(is_usable(best_gemm_kernels()));
  EXPECT_EQ(gemm_library().rfind("BLIS ", 0), 0u) << gemm_library();
}

/// Runs body in a child process and expects it to end with 0.
void in_child(const std::function<bool()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(body() ? 0 : 1), testing::ExitedWithCode(0), "");
}

bool refuses(const std::function<void()>& body) {
  try {
    body();
  } catch (const EnvironmentError&) { return true; }
  return false;
}

TEST(GemmKernelsChoice, IsMadeOnce) {
  in_child([] {
    (void)gemm_library();  // must not fix the choice
    const GemmKernels first = best_gemm_kernels();
    const GemmKernels other = first == GemmKernels::generic ? GemmKernels::haswell : GemmKernels::generic;
    select_gemm_kernels(first);
    select_gemm_kernels(first);
    return selected_gemm_kernels() == first && refuses([&] { select_gemm_kernels(other); }) &&
           selected_gemm_kernels() == first;
  });
}

TEST(GemmKernelsChoice, HonoursTheUsersVariable) {
  in_child([] {
    ::setenv("BLIS_ARCH_TYPE", "3", 1);
    return best_gemm_kernels() == GemmKernels::haswell;
  });
  in_child([] {
    ::setenv("BLIS_ARCH_TYPE", "haswell", 1);  // BLIS itself would read any word as 0
    return refuses([] { (void)best_gemm_kernels(); });
  });
}

TEST(GemmBlock, WritesAnyStorageToTheSameBits) {
  Problem p({300, 200, 700}, false, true, false);
  StoredMatrix c(300, 200, false), d(300, 200, true);
  gemm_block(p.shape, p.a.view, p.b.view, c.view);
  gemm_block(p.shape, p.a.view, p.b.view, d.view);
  EXPECT_TRUE(same_bits(c.view, d.view, 300, 200));
}

}  // namespace
}  // namespace cleave::kernels
