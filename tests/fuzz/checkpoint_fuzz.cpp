// Checkpoints: damaged as they are, and with a seal made right over the damage, so that it reaches the readers behind
// the seal, and the HDF5 library behind them.
#include <xxhash.h>

#include <cstring>
#include <vector>

#include "cleave/checkpoint/reference.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "fuzz.hpp"

namespace {

using namespace cleave;

void read(std::span<const std::uint8_t> bytes) {
  const fuzz::MemoryFile file(bytes);
  fuzz::expect_value_or_refusal([&] { (void)checkpoint::read_header(file.path()); });
  fuzz::expect_value_or_refusal([&] { (void)checkpoint::read_snapshot(file.path()); });
  fuzz::expect_value_or_refusal([&] { (void)checkpoint::read_batches(file.path()); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read({data, size});
  constexpr std::size_t kSeal = 24;  // "CLVSEAL1", length, XXH3-64 of what is before
  if (size < kSeal || std::memcmp(data + size - kSeal, "CLVSEAL1", 8) != 0) return 0;
  std::vector<std::uint8_t> sealed(data, data + size);
  const std::uint64_t length = size - kSeal, sum = XXH3_64bits(sealed.data(), length);
  std::memcpy(sealed.data() + length + 8, &length, 8);
  std::memcpy(sealed.data() + length + 16, &sum, 8);
  if (std::memcmp(sealed.data(), data, size) != 0) read(sealed);
  return 0;
}
