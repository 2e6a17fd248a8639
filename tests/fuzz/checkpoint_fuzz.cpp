// Checkpoints: with a seal made right over the damage, so that it reaches the readers behind the seal, and the HDF5
// library behind them. Each input is opened once: opening is most of what an execution costs, and reading a snapshot
// does all that reading a header does.
#include <xxhash.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "cleave/checkpoint/reference.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "fuzz.hpp"

namespace {

using namespace cleave;

void read(std::span<const std::uint8_t> bytes) {
  const fuzz::MemoryFile file(bytes);
  // Reference files have batches, checkpoints have none.
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool batches = text.find("batches") != std::string_view::npos;
  fuzz::expect_value_or_refusal([&] {
    if (batches) {
      (void)checkpoint::read_batches(file.path());
    } else {
      (void)checkpoint::read_snapshot(file.path());
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kSeal = 24;  // "CLVSEAL1", length, XXH3-64 of what is before
  if (size < kSeal || std::memcmp(data + size - kSeal, "CLVSEAL1", 8) != 0) {
    read({data, size});
    return 0;
  }
  std::vector<std::uint8_t> sealed(data, data + size);
  const std::uint64_t length = size - kSeal, sum = XXH3_64bits(sealed.data(), length);
  std::memcpy(sealed.data() + length + 8, &length, 8);
  std::memcpy(sealed.data() + length + 16, &sum, 8);
  read(sealed);
  return 0;
}
