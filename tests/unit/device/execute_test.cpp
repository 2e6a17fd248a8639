// Tasks whose operands are read where the server keeps them give the bits of tasks that carry them.
#include "execute.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/kernels/gemm.hpp"
#include "support/task_header.hpp"

namespace cleave::device {
namespace {

// What a server keeps, of which some is told to devices.
std::vector<float> kept(std::size_t count) {
  const Random random(5, Purpose::test, 1);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(random.normal(i));
  return values;
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

// rows x cols from `first` on, rows `ld` apart, one after another.
void copy_out(const float* first, std::int64_t ld, std::int64_t rows, std::int64_t cols, std::byte* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(reinterpret_cast<const std::byte*>(first + i * ld), cols * 4, to + i * cols * 4);
  }
}

std::vector<std::vector<std::byte>> outputs_of(const comm::Frame& frame) {
  const auto task = comm::decode_task(frame);
  EXPECT_TRUE(task);
  kernels::Parallel parallel(2);
  Scratch scratch;
  const auto outcome = execute(*task, parallel, scratch);
  const auto* result = std::get_if<comm::ResultDraft>(&outcome);
  EXPECT_NE(result, nullptr);
  std::vector<std::vector<std::byte>> outputs;
  for (const auto& output : result->outputs) outputs.emplace_back(output.begin(), output.end());
  return outputs;
}

TEST(Execute, ProductsOfOperandsInPlace) {
  const std::int64_t m = 21, n = 40, ld = 90;
  for (const std::int64_t k : {std::int64_t{33}, kBlockK + 7}) {
    for (const bool a_by_columns : {false, true}) {
      for (const bool b_by_columns : {false, true}) {
        std::array<std::int64_t, 2> a{m, k}, b{k, n};
        if (a_by_columns) std::swap(a[0], a[1]);
        if (b_by_columns) std::swap(b[0], b[1]);
        const std::int64_t a_ld = std::max(ld, a[1] + 3), b_ld = std::max(ld, b[1] + 5);
        const std::int64_t b_at = a[0] * a_ld + 11;
        const std::vector<float> memory = kept(static_cast<std::size_t>(b_at + b[0] * b_ld));

        comm::Header header = testing_support::task_header(comm::Work::gemm);
        header.gemm = {m, n, k, k_blocks(k), 0};
        header.a_by_columns = a_by_columns;
        header.b_by_columns = b_by_columns;
        comm::TaskDraft carried = comm::begin_task(header);
        copy_out(memory.data() + 2, a_ld, a[0], a[1], carried.operands[0].data());
        copy_out(memory.data() + b_at, b_ld, b[0], b[1], carried.operands[1].data());
        std::fill(carried.row_exponents.begin(), carried.row_exponents.end(), std::int16_t{7});
        std::fill(carried.column_exponents.begin(), carried.column_exponents.end(), std::int16_t{8});

        header.in_place = true;
        comm::TaskDraft placed = comm::begin_task(header);
        placed.places[0] = {2 * 4, a_ld};
        placed.places[1] = {b_at * 4, b_ld};
        std::copy(carried.row_exponents.begin(), carried.row_exponents.end(), placed.row_exponents.begin());
        std::copy(carried.column_exponents.begin(), carried.column_exponents.end(), placed.column_exponents.begin());
        comm::Frame frame = comm::seal(std::move(placed));
        frame.set_reach(bytes_of(memory), nullptr);
        EXPECT_EQ(outputs_of(frame), outputs_of(comm::seal(std::move(carried))));
      }
    }
  }
}

TEST(Execute, AttentionOfOperandsInPlace) {
  const std::int64_t pairs = 3, queries = 2, seq = 9, head_dim = 4, ld = 60;
  for (const comm::Work work : {comm::Work::attention_forward, comm::Work::attention_backward}) {
    comm::Header header = testing_support::task_header(work);
    header.attention = {pairs, seq, head_dim, queries};
    comm::TaskDraft carried = comm::begin_task(header);
    header.in_place = true;
    comm::TaskDraft placed = comm::begin_task(header);
    const std::vector<float> memory = kept(static_cast<std::size_t>(seq * ld) * placed.places.size());

    // Heads in an order that is not that of the message.
    std::size_t next = 0;
    for (std::size_t operand = 0; operand < carried.operands.size(); ++operand) {
      const auto heads = static_cast<std::int64_t>(carried.operands[operand].size()) / (seq * head_dim * 4);
      for (std::int64_t h = 0; h < heads; ++h, ++next) {
        const auto first = static_cast<std::int64_t>((next * 5) % placed.places.size()) * seq * ld + h;
        placed.places[next] = {first * 4, ld};
        copy_out(memory.data() + first, ld, seq, head_dim, carried.operands[operand].data() + h * seq * head_dim * 4);
      }
    }
    ASSERT_EQ(next, placed.places.size());
    comm::Frame frame = comm::seal(std::move(placed));
    frame.set_reach(bytes_of(memory), nullptr);
    EXPECT_EQ(outputs_of(frame), outputs_of(comm::seal(std::move(carried))));
  }
}

}  // namespace
}  // namespace cleave::device
