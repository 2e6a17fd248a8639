// The server's two copies beside memcpy: gathering blocks of tensors into messages, and looking at results as they are
// put in their place.
//
//   build/release/bench/server_path
//
// Blocks as the planner cuts them of a 2048 x 1536 activation, one thread, in turns with a memcpy of as many bytes;
// medians. Tensors and messages lie in memory like the server's, and what a turn touches is in no cache. Every copy is
// checked.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/wire.hpp"
#include "server/blocks.hpp"
#include "timing.hpp"

namespace {

using namespace cleave;

// For each of the three uses kTensors tensors and messages: 576 MiB, each place of them touched once in a while.
constexpr std::int64_t kRows = 2048, kCols = 1536, kElements = kRows * kCols, kTensors = 8;
constexpr int kTurns = 41;
enum class Use { pack, place, copy };

struct Block2d {
  std::int64_t rows = 0, cols = 0, heads = 1;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  [[nodiscard]] std::int64_t apart() const { return elements() / heads; }
};

class Memory {
 public:
  Memory() {
    for (std::int64_t i = 0; i < 3 * kTensors * kElements; ++i) {
      of(tensors_)[i] = static_cast<float>(i % 1021) - 500;
      of(messages_)[i] = static_cast<float>(i % 1019) - 500;
    }
  }

  /// The block's first element, at another corner whenever the turn comes back to a tensor.
  float* block(Use use, int turn, const Block2d& block) {
    const std::int64_t across = kCols / block.cols, corner = turn / kTensors;
    const std::int64_t row = corner / across * block.rows % (kRows - block.rows + 1);
    return of(tensors_) + start(use, turn) + row * kCols + corner % across * block.cols;
  }
  std::byte* message(Use use, int turn, const Block2d& block) { return run(messages_, use, turn, block); }
  std::byte* copied(int turn, const Block2d& block) { return run(tensors_, Use::copy, turn, block); }

 private:
  static float* of(const Block& block) { return reinterpret_cast<float*>(block.data()); }
  static std::int64_t start(Use use, int turn) {
    return (static_cast<std::int64_t>(use) * kTensors + turn % kTensors) * kElements;
  }
  static std::byte* run(const Block& of_all, Use use, int turn, const Block2d& block) {
    const std::int64_t corner = turn / kTensors * block.elements() % (kElements - block.elements() + 1);
    return reinterpret_cast<std::byte*>(of(of_all) + start(use, turn) + corner);
  }

  Block tensors_{3 * kTensors * kElements * sizeof(float)}, messages_{tensors_.capacity()};
};

// In the message: rows x cols, or so many heads of them one after another.
void check(const float* tensor, const std::byte* payload, const Block2d& block, DType wire) {
  const std::int64_t width = block.cols / block.heads;
  for (std::int64_t i = 0; i < block.rows; i += 97) {
    for (std::int64_t j = 0; j < block.cols; j += 89) {
      const std::int64_t at = j / width * block.apart() + i * width + j % width;
      float value = 0;
      if (wire == DType::f32)
        value = reinterpret_cast<const float*>(payload)[at];
      else
        value = kernels::from_bf16(reinterpret_cast<const std::uint16_t*>(payload)[at]);
      const float kept =
          wire == DType::f32 ? tensor[i * kCols + j] : kernels::from_bf16(kernels::to_bf16(tensor[i * kCols + j]));
      CLEAVE_ASSERT(value == kept, "element {} {} is {}, not {}", i, j, value, kept);
    }
  }
}

void pack(const float* from, const Block2d& block, DType wire, std::byte* payload) {
  if (block.heads > 1)
    server::gather_heads({from, block.rows, block.cols, kCols}, block.heads, wire, payload, block.apart());
  else
    server::gather({from, kCols, 1}, block.rows, block.cols, wire, payload);
}

bool place(const std::byte* payload, const Block2d& block, DType wire, float* to) {
  const kernels::Rows rows(to, block.rows, block.cols, kCols);
  if (block.heads > 1) return server::scatter_representable_heads(payload, block.apart(), block.heads, wire, rows);
  return server::scatter_representable(payload, wire, rows);
}

void measure(Memory& memory, const char* name, const Block2d& block, DType wire) {
  std::vector<double> packing, placing, copying;
  const double bytes = static_cast<double>(block.elements()) * sizeof(float);
  for (int turn = 0; turn < kTurns; ++turn) {
    float* const from = memory.block(Use::pack, turn, block);
    float* const to = memory.block(Use::place, turn, block);
    std::byte* const sent = memory.message(Use::pack, turn, block);
    const std::byte* const result = memory.message(Use::place, turn, block);
    std::byte* const copy = memory.message(Use::copy, turn, block);
    const std::byte* const original = memory.copied(turn, block);

    const double start = bench::seconds_now();
    pack(from, block, wire, sent);
    const double packed = bench::seconds_now();
    const bool good = place(result, block, wire, to);
    const double placed = bench::seconds_now();
    std::memcpy(copy, original, static_cast<std::size_t>(bytes));
    asm volatile("" : : "r"(copy) : "memory");
    const double copied = bench::seconds_now();

    CLEAVE_ASSERT(good, "block of {} x {}", block.rows, block.cols);
    check(from, sent, block, wire);
    check(to, result, block, wire);
    if (turn < 3) continue;
    packing.push_back(bytes / (packed - start) / 1e9);
    placing.push_back(bytes / (placed - packed) / 1e9);
    copying.push_back(bytes / (copied - placed) / 1e9);
  }
  const double memcpy_rate = bench::median(copying);
  fmt::print("{:<28} pack {:5.1f} GB/s {:4.0f} %   place {:5.1f} GB/s {:4.0f} %   memcpy {:5.1f} GB/s\n", name,
             bench::median(packing), bench::median(packing) / memcpy_rate * 100, bench::median(placing),
             bench::median(placing) / memcpy_rate * 100, memcpy_rate);
}

}  // namespace

int main() {
  Memory memory;
  measure(memory, "1024 x 1536 of fp32", {1024, kCols}, DType::f32);
  measure(memory, "2048 x 768 of fp32", {kRows, 768}, DType::f32);
  measure(memory, "2048 x 64 (a head) of fp32", {kRows, 64}, DType::f32);
  measure(memory, "256 x 384 (6 heads) of fp32", {256, 384, 6}, DType::f32);
  measure(memory, "1024 x 1536 (24 heads)", {1024, kCols, 24}, DType::f32);
  measure(memory, "1024 x 1536 as bf16", {1024, kCols}, DType::bf16);
  measure(memory, "2048 x 768 as bf16", {kRows, 768}, DType::bf16);
}
