// The check of attention: honest pairs pass, forward and backward, in every wire type; one wrong element above the
// bound, two swapped rows, zeros and what is not finite do not.
#include "cleave/kernels/attention_check.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "cleave/kernels/wire.hpp"
#include "projection.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

struct Pair {
  PairShape shape;
  DType type;
  Floats q, k, v, d_o, o, dq, dk, dv;
  std::vector<float> scratch;
  Pair(PairShape s, DType wire, std::uint32_t stream, double scale = 1.0) : shape(s), type(wire) {
    const std::int64_t key = s.seq * s.head_dim, query = key * s.heads;
    const auto rounded = [&](std::int64_t n, std::uint32_t part, double size) {
      Floats values = noise(n, stream * 8 + part, size);
      round_to(type, {values.data(), n / s.head_dim, s.head_dim});
      return values;
    };
    q = rounded(query, 1, scale);
    k = rounded(key, 2, scale);
    v = rounded(key, 3, 0.5);
    d_o = rounded(query, 4, 0.1);
    o = dq = Floats(static_cast<std::size_t>(query));
    dk = dv = Floats(static_cast<std::size_t>(key));
    scratch.resize(static_cast<std::size_t>(attention_backward_scratch(s).value()) / sizeof(float));
    attention_forward(s, q.data(), k.data(), v.data(), o.data(), scratch);
    attention_backward(s, q.data(), k.data(), v.data(), d_o.data(), dq.data(), dk.data(), dv.data(), scratch);
    for (Floats* result : {&o, &dq, &dk, &dv})
      round_to(type, {result->data(), std::ssize(*result) / s.head_dim, s.head_dim});
  }
  double forward(std::uint32_t draw) {
    return check_attention_forward(shape, q.data(), k.data(), v.data(), o.data(), type,
                                   Random(draw, Purpose::verification), scratch);
  }
  double backward(std::uint32_t draw) {
    return check_attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), dq.data(), dk.data(), dv.data(),
                                    type, Random(draw, Purpose::verification), scratch);
  }
};

const PairShape kPairShapes[] = {{1, 1, 8}, {1, 64, 16}, {1, 256, 64}, {4, 130, 32}, {2, 900, 64}};

TEST(AttentionCheck, HonestPairsPass) {
  for (const PairShape& shape : kPairShapes)
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const double scale : {0.1, 1.0, 5.0}) {  // scores from nearly alike to nearly all on one key
        Pair pair(shape, type, 3, scale);
        for (std::uint32_t draw = 0; draw < 5; ++draw) {
          EXPECT_LE(pair.forward(draw), 1.0) << shape.seq << " " << name_of(type) << " " << scale;
          EXPECT_LE(pair.backward(draw), 1.0) << shape.seq << " " << name_of(type) << " " << scale;
        }
      }
}

// Every result, a sign or exponent bit in the middle of it, whatever the draw.
TEST(AttentionCheck, OneWrongElementIsCaught) {
  for (const PairShape& shape : kPairShapes) {
    Pair pair(shape, DType::f32, 4);
    const std::array<Floats*, 4> results{&pair.o, &pair.dq, &pair.dk, &pair.dv};
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (const std::size_t at : {std::size_t{0}, results[r]->size() / 2, results[r]->size() - 1}) {
        float& element = (*results[r])[at];
        const float honest = element;
        for (const float wrong :
             {honest + 0.01f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
          element = wrong;
          for (std::uint32_t draw = 0; draw < 3; ++draw)
            EXPECT_GT(r == 0 ? pair.forward(draw) : pair.backward(draw), 1.0) << shape.seq << " result " << r;
        }
        element = honest;
      }
    }
    EXPECT_LE(pair.forward(9), 1.0);
    EXPECT_LE(pair.backward(9), 1.0);
  }
}

// With one key its probability is 1 and the result is V: the bound of the only row is 4 u (1 + 1) |V|.
TEST(AttentionCheck, AllowsWhatHonestRoundingMayErrAndNoMore) {
  Pair pair({1, 1, 8}, DType::f32, 6);
  double square = 0;
  for (const float x : pair.v) square += static_cast<double>(x) * x;
  float& element = pair.o[3];
  const double bound = 8 * projection::kUnit * std::sqrt(square), honest = element;
  for (const double times : {0.9, 1.1, 3.0}) {
    element = static_cast<float>(honest + times * bound);
    const double error = std::abs(element - honest);
    for (std::uint32_t draw = 0; draw < 3; ++draw) EXPECT_NEAR(pair.forward(draw), error / bound, 1e-6) << times;
  }
}

// What is wrong in one result cannot make up for what is wrong in another one.
TEST(AttentionCheck, EachResultIsMultipliedByAVectorOfItsOwn) {
  const Random random(1, Purpose::verification);
  const auto first = projection::random_signs(64, random, 1);
  EXPECT_EQ(projection::random_signs(64, random, 1), first);
  EXPECT_NE(projection::random_signs(64, random, 2), first);
  EXPECT_NE(projection::random_signs(64, random, 3), projection::random_signs(64, random, 2));
}

TEST(AttentionCheck, WrongRowsAndZerosAreCaught) {
  Pair pair({2, 200, 64}, DType::bf16, 5);
  const std::array<Floats*, 4> results{&pair.o, &pair.dq, &pair.dk, &pair.dv};
  for (std::size_t r = 0; r < results.size(); ++r) {
    const Floats honest = *results[r];
    const auto ratio = [&] { return r == 0 ? pair.forward(1) : pair.backward(1); };
    std::swap_ranges(results[r]->begin(), results[r]->begin() + 64, results[r]->begin() + 100 * 64);
    EXPECT_GT(ratio(), 1.0) << "swapped rows of result " << r;
    *results[r] = honest;
    std::fill(results[r]->begin(), results[r]->end(), 0.0f);
    EXPECT_GT(ratio(), 1.0) << "zeros in result " << r;
    *results[r] = honest;
  }
}

}  // namespace
}  // namespace cleave::kernels
