// Entry point of the program.
#include <cstdio>

#include "cleave/base/version.hpp"

int main() {
  std::printf("cleave %s\n", cleave::kVersion);
  return 0;
}
