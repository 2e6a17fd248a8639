// How HDF5 writes checkpoints: a file driver that never fails the library, and remembers that it should have.
//
// libhdf5 1.10 can crash, then or at exit, after a write that failed (a full disk). Training must survive a full disk.
// So this driver takes down the first error, tells the library that all is well, keeps in memory what the library
// might read back, and leaves it to the writer to ask for the error and drop the file.
#pragma once

#include <hdf5.h>

#include <filesystem>
#include <string>

namespace cleave::checkpoint::hdf5 {

/// The first thing that went wrong with a file, if anything did.
struct WriteFailure {
  const char* operation = nullptr;  ///< "write", "truncate", ...; null = none
  int error = 0;                    ///< errno
};

/// Makes files of `access` (a file access property list) go through the driver and report to `failure`, which must
/// outlive them.
void use_file_driver(hid_t access, WriteFailure* failure);

}  // namespace cleave::checkpoint::hdf5
