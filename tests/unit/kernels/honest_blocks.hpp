// Honest blocks by the thousand: products of random matrices of many kinds and shapes, as a device returns them, and
// the ratio of their error to the bound of the check.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check_block.hpp"
#include "cleave/base/random.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/attention_check.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::kernels::honest {

/// What the elements of A and B are like.
enum class Data { normal, growing, wide, sparse, equal };
inline constexpr std::array kData{Data::normal, Data::growing, Data::wide, Data::sparse, Data::equal};
inline const char* name_of(Data data) {
  static constexpr const char* kNames[] = {"normal", "mean 3, deviation 1", "14 orders of magnitude (fp16: 4)",
                                           "nine in ten are 0", "all elements equal"};
  return kNames[static_cast<int>(data)];
}

/// What is checked.
enum class Form { fp32, bf16, fp16, sums32, sums64, attention_forward, attention_backward };
inline constexpr std::array kForms{
    Form::fp32, Form::bf16, Form::fp16, Form::sums32, Form::sums64, Form::attention_forward, Form::attention_backward};
inline const char* name_of(Form form) {
  static constexpr const char* kNames[] = {
      "fp32", "bf16", "fp16", "32-bit sums", "64-bit sums", "attention", "attention backward"};
  return kNames[static_cast<int>(form)];
}

/// A stream of numbers, quick rather than good (xorshift64*).
class Source {
 public:
  explicit Source(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 1) {}
  std::uint64_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  double normal() {  // sum of uniforms: near enough
    return (uniform() + uniform() + uniform() + uniform() - 2.0) * std::sqrt(3.0);
  }

 private:
  std::uint64_t state_;
};

inline std::vector<float> matrix(Source& source, Data data, std::int64_t n, DType type) {
  std::vector<float> values(static_cast<std::size_t>(n));
  const double common = source.normal();
  const double octaves = type == DType::f16 ? 12 : 46, lowest = type == DType::f16 ? -10 : -30;
  for (float& value : values) {
    switch (data) {
      case Data::normal: value = static_cast<float>(source.normal()); break;
      case Data::growing: value = static_cast<float>(3 + source.normal()); break;
      case Data::wide:
        value = static_cast<float>(source.normal() * std::exp2(source.uniform() * octaves + lowest));
        break;
      case Data::sparse: value = source.uniform() < 0.9 ? 0.0f : static_cast<float>(source.normal()); break;
      case Data::equal: value = static_cast<float>(common); break;
    }
  }
  round_to(type, {values.data(), 1, n});
  return values;
}

inline DType wire_of(Form form) {
  if (form == Form::bf16 || form == Form::sums32) return DType::bf16;
  return form == Form::fp16 ? DType::f16 : DType::f32;
}

inline double attention_ratio(Source& source, Data data, bool backward, const Random& signs) {
  const PairShape shape{source.between(1, 2), source.between(1, 40), 8 * source.between(1, 4)};
  const std::int64_t key = shape.seq * shape.head_dim, query = key * shape.heads;
  const auto q = matrix(source, data, query, DType::f32), k = matrix(source, data, key, DType::f32),
             v = matrix(source, data, key, DType::f32), d_o = matrix(source, data, query, DType::f32);
  std::vector<float> scratch(static_cast<std::size_t>(attention_backward_scratch(shape).value()) / sizeof(float));
  std::vector<float> o(q.size()), dk(k.size()), dv(k.size());
  if (!backward) {
    attention_forward(shape, q.data(), k.data(), v.data(), o.data(), scratch);
    return check_attention_forward(shape, q.data(), k.data(), v.data(), o.data(), DType::f32, signs, scratch);
  }
  attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), o.data(), dk.data(), dv.data(), scratch);
  return check_attention_backward(shape, q.data(), k.data(), v.data(), d_o.data(), o.data(), dk.data(), dv.data(),
                                  DType::f32, signs, scratch);
}

/// Computes block number `index` of a kind as a device would, and checks it: error / bound.
inline double ratio_of_block(Form form, Data data, std::uint64_t index) {
  Source source(index * 64 + static_cast<std::uint64_t>(form) * 8 + static_cast<std::uint64_t>(data));
  const Random signs(index, Purpose::verification, 1);
  if (form == Form::attention_forward || form == Form::attention_backward)
    return attention_ratio(source, data, form == Form::attention_backward, signs);
  const DType wire = wire_of(form);
  const bool sums = form == Form::sums32 || form == Form::sums64;
  // One block in 64 is as deep as a K block.
  const std::int64_t k = index % 64 == 0 ? kBlockK : source.between(1, 60);
  const GemmShape shape{source.between(1, 8), source.between(1, 12), sums ? std::min(k, kBlockK) : k};
  const auto a = matrix(source, data, shape.m * shape.k, wire), b = matrix(source, data, shape.k * shape.n, wire);
  const ConstMatrix left(a.data(), shape.k), right(b.data(), shape.n);
  static Parallel parallel(1);
  if (!sums) {
    std::vector<float> c(static_cast<std::size_t>(shape.m * shape.n));
    gemm_block(shape, left, right, {c.data(), shape.n});
    round_to(wire, {c.data(), shape.m, shape.n});
    return testing_tools::check_product(shape, left, right, {c.data(), shape.n}, wire, signs, wire);
  }
  std::vector<std::int16_t> rows(static_cast<std::size_t>(shape.m)), columns(static_cast<std::size_t>(shape.n));
  (void)norm_exponents(parallel, left, shape.m, shape.k, rows);
  (void)norm_exponents(parallel, right.transposed(), shape.n, shape.k, columns);
  std::vector<std::int64_t> integers(static_cast<std::size_t>(shape.m * shape.n));
  const PartialSums place{partial_sum_type(wire), integers.data(), shape.n};
  (void)multiply_box(parallel, shape, left, right, rows, columns, place);
  return testing_tools::check_of(shape, left, right, wire, signs).ratio_of(place, 0, shape.m, rows, columns);
}

}  // namespace cleave::kernels::honest
