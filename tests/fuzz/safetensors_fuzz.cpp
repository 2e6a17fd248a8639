// Safetensors files of strangers: the header, and every tensor that it names.
#include "cleave/checkpoint/safetensors.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cleave;
  const fuzz::MemoryFile file({data, size});
  fuzz::expect_value_or_refusal([&] { (void)checkpoint::read_safetensors(file.path()); });
  return 0;
}
