// A driver of the kind that HDF5 calls virtual file driver: open, read, write and close on a POSIX descriptor.
//
// After the first failure nothing more goes to disk: metadata goes to `overlay`, which reads consult, and raw data,
// which the library never reads back, is dropped. No exception may cross into the library, which is C.
#include "file_driver.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace cleave::checkpoint::hdf5 {

namespace {

/// What the property list carries; the library copies it byte by byte.
struct DriverInfo {
  WriteFailure* failure;
};

struct Patch {
  haddr_t begin;
  std::vector<char> bytes;
};

/// An open file. The library sees the base; it must come first, at the same address.
struct OpenFile {
  H5FD_t base{};
  int descriptor = -1;
  haddr_t eoa = 0;  ///< end of what the library has allocated
  haddr_t eof = 0;  ///< end of what has been written
  WriteFailure* failure = nullptr;
  std::vector<Patch> overlay;

  void fail(const char* operation) {
    if (failure->operation == nullptr) *failure = {operation, errno};
  }
};

OpenFile* file_of(H5FD_t* base) { return reinterpret_cast<OpenFile*>(base); }
const OpenFile* file_of(const H5FD_t* base) { return reinterpret_cast<const OpenFile*>(base); }

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  const int mode = (flags & H5F_ACC_RDWR ? O_RDWR : O_RDONLY) | (flags & H5F_ACC_TRUNC ? O_TRUNC : 0) |
                   (flags & H5F_ACC_CREAT ? O_CREAT : 0) | (flags & H5F_ACC_EXCL ? O_EXCL : 0) | O_NOFOLLOW | O_CLOEXEC;
  auto* file = new (std::nothrow) OpenFile;
  if (file == nullptr) return nullptr;
  file->failure = info->failure;
  file->descriptor = ::open(name, mode, 0666);
  if (file->descriptor < 0) {
    file->fail("create");
    delete file;
    return nullptr;
  }
  *file->failure = {};  // creating a file, the library first tries to open an old one
  const off_t size = ::lseek(file->descriptor, 0, SEEK_END);
  file->eof = size > 0 ? static_cast<haddr_t>(size) : 0;
  return &file->base;
}

herr_t close_driver(H5FD_t* base) {
  OpenFile* file = file_of(base);
  if (::close(file->descriptor) != 0) file->fail("close");
  delete file;
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  return file_of(a)->descriptor < file_of(b)->descriptor ? -1 : file_of(a)->descriptor > file_of(b)->descriptor;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t get_eoa(const H5FD_t* base, H5FD_mem_t) { return file_of(base)->eoa; }
haddr_t get_eof(const H5FD_t* base, H5FD_mem_t) { return file_of(base)->eof; }

herr_t set_eoa(H5FD_t* base, H5FD_mem_t, haddr_t address) {
  file_of(base)->eoa = address;
  return 0;
}

herr_t read_bytes(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t begin, size_t size, void* out) {
  OpenFile* file = file_of(base);
  std::memset(out, 0, size);  // past the end there are zeros
  for (size_t done = 0; done < size;) {
    const ssize_t got =
        ::pread(file->descriptor, static_cast<char*>(out) + done, size - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) file->fail("read");
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  for (const Patch& patch : file->overlay) {
    const haddr_t from = std::max(begin, patch.begin), to = std::min(begin + size, patch.begin + patch.bytes.size());
    if (from < to)
      std::memcpy(static_cast<char*>(out) + (from - begin), patch.bytes.data() + (from - patch.begin), to - from);
  }
  return 0;
}

herr_t write_bytes(H5FD_t* base, H5FD_mem_t type, hid_t, haddr_t begin, size_t size, const void* bytes) {
  OpenFile* file = file_of(base);
  const char* const from = static_cast<const char*>(bytes);
  for (size_t done = 0; done < size && file->failure->operation == nullptr;) {
    const ssize_t put = ::pwrite(file->descriptor, from + done, size - done, static_cast<off_t>(begin + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) file->fail("write");
    if (put > 0) done += static_cast<size_t>(put);
  }
  if (file->failure->operation != nullptr && type != H5FD_MEM_DRAW) {
    try {
      file->overlay.push_back({begin, {from, from + size}});
    } catch (...) { return -1; }
  }
  file->eof = std::max(file->eof, begin + size);
  return 0;
}

herr_t truncate(H5FD_t* base, hid_t, hbool_t) {
  OpenFile* file = file_of(base);
  if (file->eoa == file->eof) return 0;
  if (file->failure->operation == nullptr && ::ftruncate(file->descriptor, static_cast<off_t>(file->eoa)) != 0) {
    file->fail("truncate");
  }
  file->eof = file->eoa;
  return 0;
}

H5FD_class_t make_driver() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600);  // from the range that the library leaves to applications
#endif
  driver.name = "cleave";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open_file;
  driver.close = close_driver;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = get_eoa;
  driver.set_eoa = set_eoa;
  driver.get_eof = get_eof;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate;
  const H5FD_mem_t one_free_list[] = H5FD_FLMAP_DICHOTOMY;
  static_assert(sizeof one_free_list == sizeof driver.fl_map);
  std::memcpy(driver.fl_map, one_free_list, sizeof one_free_list);
  return driver;
}

}  // namespace

void use_file_driver(hid_t access, WriteFailure* failure) {
  static const H5FD_class_t driver = make_driver();
  static const hid_t id = H5FDregister(&driver);
  const DriverInfo info{failure};
  H5Pset_driver(access, id, &info);
}

}  // namespace cleave::checkpoint::hdf5
