// Products with a triangle against whole ones, bit for bit, and of any size.
#include "triangle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "cleave/base/random.hpp"

namespace cleave::kernels::triangle {
namespace {

using Floats = std::vector<float>;

Floats noise(std::int64_t n, std::uint32_t stream) {
  const Random random(9, Purpose::test, stream);
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random.normal(i));
  return x;
}

/// rows x depth with zeros where t > first + i.
Floats lower(std::int64_t rows, std::int64_t depth, std::int64_t first) {
  Floats x = noise(rows * depth, 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t zeros = std::max<std::int64_t>(0, depth - first - i - 1);
    std::fill_n(x.begin() + (i + 1) * depth - zeros, zeros, 0.0F);
  }
  return x;
}

void expect_same(const Floats& got, const Floats& want, std::int64_t cols, std::int64_t first, bool below) {
  for (std::int64_t at = 0; at < std::ssize(want); ++at) {
    if (below && at % cols > first + at / cols) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[static_cast<std::size_t>(at)]),
              std::bit_cast<std::uint32_t>(want[static_cast<std::size_t>(at)]))
        << "row " << at / cols << ", column " << at % cols;
  }
}

struct Case {
  std::int64_t rows, keys, width, first;  // of a block of query rows; keys >= first + rows
};
constexpr Case kCases[] = {{1, 1, 8, 0},      {5, 5, 3, 0},        {32, 32, 16, 0},      {128, 128, 64, 0},
                           {128, 256, 64, 0}, {100, 228, 64, 128}, {128, 1024, 80, 896}, {77, 600, 130, 512}};

TEST(Triangle, LeavesOutOnlyWhatIsZeroOrNotWanted) {
  for (const auto& [rows, keys, width, first] : kCases) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << keys << " keys, " << width << " wide, from " << first);
    Factor a(Side::rows), b(Side::columns);

    const Floats q = noise(rows * width, 2), k = noise(keys * width, 3);
    Floats scores(static_cast<std::size_t>(rows * keys), 7.0F), whole(scores);
    a.pack({q.data(), width}, rows, width);
    b.pack({k.data(), width}, keys, width);
    multiply_below(a, b, first, {scores.data(), keys});
    gemm_block({rows, keys, width}, {q.data(), width}, ConstMatrix(k.data(), width).transposed(), {whole.data(), keys});
    expect_same(scores, whole, keys, first, true);

    const Floats p = lower(rows, keys, first);
    Floats o(static_cast<std::size_t>(rows * width)), o_whole(o);
    a.pack_below({p.data(), keys}, rows, keys, first);
    b.pack(ConstMatrix(k.data(), width).transposed(), width, keys);
    multiply_lower(a, b, first, {o.data(), width});
    for (std::int64_t k0 = 0; k0 < keys; k0 += kBlockK)
      gemm_block({rows, width, std::min(kBlockK, keys - k0)}, {p.data() + k0, keys}, {k.data() + k0 * width, width},
                 {o_whole.data(), width}, k0 > 0 ? Accumulate::yes : Accumulate::no);
    expect_same(o, o_whole, width, 0, false);

    Floats dk = noise(keys * width, 4), dk_whole = dk;
    a.pack(ConstMatrix(p.data(), keys).transposed(), keys, rows);
    b.pack(ConstMatrix(q.data(), width).transposed(), width, rows);
    add_upper(a, b, first, {dk.data(), width});
    gemm_block({keys, width, rows}, ConstMatrix(p.data(), keys).transposed(), {q.data(), width},
               {dk_whole.data(), width}, Accumulate::yes);
    expect_same(dk, dk_whole, width, 0, false);
  }
}

}  // namespace
}  // namespace cleave::kernels::triangle
