// Which HDF5 this process runs with, which may be another than it was built with.
#include "cleave/checkpoint/library.hpp"

#include <fmt/format.h>
#include <hdf5.h>

namespace cleave::checkpoint {

std::string checkpoint_library() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

}  // namespace cleave::checkpoint
