// Honest blocks against the bound of the check: the largest ratio of error to bound, and how many exceed it.
//
//   verify_honest [BLOCKS]        default: 1000000, shared by every form and kind of data
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "unit/kernels/honest_blocks.hpp"

int main(int argc, char** argv) {
  using namespace cleave::kernels::honest;
  const std::uint64_t blocks = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const std::uint64_t each = blocks / (kForms.size() * kData.size()) + 1;
  std::uint64_t suspected = 0, total = 0;
  fmt::print("| result | data | blocks | largest error / bound | suspected |\n|---|---|---|---|---|\n");
  for (const Form form : kForms) {
    for (const Data data : kData) {
      double largest = 0;
      std::uint64_t above = 0;
      for (std::uint64_t index = 0; index < each; ++index) {
        const double ratio = ratio_of_block(form, data, index);
        largest = std::max(largest, ratio);
        above += ratio <= 1.0 ? 0 : 1;
      }
      fmt::print("| {} | {} | {} | {:.3f} | {} |\n", name_of(form), name_of(data), each, largest, above);
      suspected += above;
      total += each;
    }
  }
  fmt::print("{} honest blocks, {} suspected; a suspected block is computed again and cleared\n", total, suspected);
  return 0;
}
