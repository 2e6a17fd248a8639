// The server's two copies beside memcpy: gathering blocks of tensors into messages, and looking at results as they are
// put in their place.
//
//   build/release/bench/server_path
//
// Blocks as the planner cuts them of a 2048 x 1536 activation, one thread, in turns with a memcpy of as many bytes of
// the tensor; medians. Every copy is checked against the tensor.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../src/server/blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/wire.hpp"
#include "timing.hpp"

namespace {

using namespace cleave;

constexpr std::int64_t kRows = 2048, kCols = 1536, kTensors = 24;  // 288 MiB: beyond the second-level caches
constexpr int kTurns = 41;

struct Tensors {
  std::vector<float> data = std::vector<float>(static_cast<std::size_t>(kRows * kCols * kTensors));
  std::vector<std::byte> payload = std::vector<std::byte>(data.size() * sizeof(float));
  Tensors() {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1021) - 500;
  }
  float* tensor(int turn) { return data.data() + turn % kTensors * kRows * kCols; }
  std::byte* message(int turn) { return payload.data() + turn % kTensors * kRows * kCols * 4; }
};

// In the message: rows x cols, or so many heads of them one after another.
void check(const float* tensor, const std::byte* payload, std::int64_t rows, std::int64_t cols, DType wire,
           std::int64_t heads) {
  const std::int64_t width = cols / heads;
  for (std::int64_t i = 0; i < rows; i += 97) {
    for (std::int64_t j = 0; j < cols; j += 89) {
      const std::int64_t at = j / width * rows * width + i * width + j % width;
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

// Gathers, and scatters into another tensor, a block at the tensor's left upper corner.
void measure(Tensors& tensors, const char* name, std::int64_t rows, std::int64_t cols, DType wire,
             std::int64_t heads = 1) {
  const std::int64_t apart = rows * cols / heads;
  std::vector<double> pack, place, copy;
  const double bytes = static_cast<double>(rows * cols) * sizeof(float);
  for (int turn = 0; turn < kTurns; ++turn) {
    float* tensor = tensors.tensor(turn);
    std::byte* payload = tensors.message(turn + 7);
    const double start = bench::seconds_now();
    if (heads > 1) {
      server::gather_heads({tensor, rows, cols, kCols}, heads, wire, payload, apart);
    } else {
      server::gather({tensor, kCols, 1}, rows, cols, wire, payload);
    }
    const double packed = bench::seconds_now();
    check(tensor, payload, rows, cols, wire, heads);
    const double before = bench::seconds_now();
    const kernels::Rows to(tensors.tensor(turn + 11), rows, cols, kCols);
    const bool good = heads > 1 ? server::scatter_representable_heads(payload, apart, heads, wire, to)
                                : server::scatter_representable(payload, wire, to);
    const double placed = bench::seconds_now();
    std::memcpy(tensors.message(turn + 13), tensors.tensor(turn + 17), static_cast<std::size_t>(bytes));
    asm volatile("" : : "r"(tensors.payload.data()) : "memory");
    const double copied = bench::seconds_now();
    CLEAVE_ASSERT(good, "block of {} x {}", rows, cols);
    if (turn < 3) continue;
    pack.push_back(bytes / (packed - start) / 1e9);
    place.push_back(bytes / (placed - before) / 1e9);
    copy.push_back(bytes / (copied - placed) / 1e9);
  }
  const double memcpy_rate = bench::median(copy);
  fmt::print("{:<28} pack {:5.1f} GB/s {:4.0f} %   place {:5.1f} GB/s {:4.0f} %   memcpy {:5.1f} GB/s\n", name,
             bench::median(pack), bench::median(pack) / memcpy_rate * 100, bench::median(place),
             bench::median(place) / memcpy_rate * 100, memcpy_rate);
}

}  // namespace

int main() {
  Tensors tensors;
  measure(tensors, "1024 x 1536 of fp32", 1024, kCols, DType::f32);
  measure(tensors, "2048 x 768 of fp32", kRows, 768, DType::f32);
  measure(tensors, "2048 x 64 (a head) of fp32", kRows, 64, DType::f32);
  measure(tensors, "256 x 384 (6 heads) of fp32", 256, 384, DType::f32, 6);
  measure(tensors, "1024 x 1536 (24 heads)", 1024, kCols, DType::f32, 24);
  measure(tensors, "1024 x 1536 as bf16", 1024, kCols, DType::bf16);
  measure(tensors, "2048 x 768 as bf16", kRows, 768, DType::bf16);
}
