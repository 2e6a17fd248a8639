// The HDF5 C library behind owning handles and checked calls; nothing else in the program sees it.
//
// Two kinds of failure are told apart. Writing: whatever the library cannot do is the environment's fault
// (EnvironmentError, with the library's own error stack as text). Reading: whatever it cannot make sense of is the
// file's fault (InputError naming file and object). What a file says about itself is checked before memory is taken:
// extents, types, layouts, storage against the length of the file; links out of the file are not followed.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/checkpoint/tensor.hpp"
#include "file_driver.hpp"

namespace cleave::checkpoint::hdf5 {

/// Owns one identifier of the library. Closing ignores errors: where they matter, close() is called first.
template <herr_t (*Close)(hid_t)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) noexcept : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) Close(id_);
  }
  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] bool valid() const { return id_ >= 0; }
  /// Closes now; negative on failure.
  herr_t close() { return Close(std::exchange(id_, H5I_INVALID_HID)); }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using File = Handle<H5Fclose>;
using Group = Handle<H5Gclose>;
using Dataset = Handle<H5Dclose>;
using Space = Handle<H5Sclose>;
using Type = Handle<H5Tclose>;
using AttributeHandle = Handle<H5Aclose>;
using Properties = Handle<H5Pclose>;

/// Stops the library from printing its errors. Called wherever it is entered.
void silence();

/// The library's error stack as `outermost: innermost`. To be taken before the next call into the library.
[[nodiscard]] std::string error_text();

// ---- Writing.

/// XXH3-64 of a value as it lies in a file: 8 bytes, or the characters (one NUL for none).
[[nodiscard]] std::uint64_t checksum_of_value(const Attribute& value);

/// A file being written, of a format that HDF5 1.8 and later read, with checksums on its metadata.
/// Every function throws EnvironmentError where the disk or the library fails; the file is then of no use.
class WriteFile {
 public:
  explicit WriteFile(const std::filesystem::path& path);

  [[nodiscard]] hid_t root() const { return file_.get(); }
  [[nodiscard]] Group create_group(const std::string& name);

  /// Writes a scalar attribute: i64, f64, or a string of fixed length without terminator.
  void write_attribute(hid_t object, const std::string& name, const Attribute& value);
  void write_checksum(hid_t object, std::uint64_t sum);

  /// Writes a contiguous f32 dataset with its checksum, which it returns.
  std::uint64_t write_tensor(const Group& group, const TensorView& tensor);

  /// Writes a scalar dataset with its checksum, which it returns.
  std::uint64_t write_scalar(const Group& group, const std::string& name, const Attribute& value);

  /// Flushes and closes; errors of delayed writes surface here.
  void close();

 private:
  template <class T>
  T check(T result, const char* operation, const std::string& object,
          std::source_location where = std::source_location::current()) const;
  /// What went wrong with the disk so far, thrown.
  void check_disk() const;

  std::string path_;
  std::unique_ptr<WriteFailure> failure_ = std::make_unique<WriteFailure>();  // outlives file_
  File file_;
};

// ---- Reading.

/// A file open for reading. `where` in its functions is an absolute name such as "/model/wte.weight".
class ReadFile {
 public:
  /// Errors: InputError for what is missing, unreadable, no regular file, sealed and damaged, or not HDF5.
  explicit ReadFile(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// Whether there is such a group. Links that lead elsewhere are none.
  [[nodiscard]] bool has_group(const std::string& where) const;
  [[nodiscard]] bool has_dataset(const std::string& where) const;
  /// Names in a group, in order. Errors: InputError for anything but datasets and groups in it.
  [[nodiscard]] std::vector<std::string> names_in(const std::string& where) const;

  /// Scalar attributes that are integers, floats or strings; others are passed over.
  [[nodiscard]] Attributes attributes_of(const std::string& where) const;
  [[nodiscard]] std::optional<std::uint64_t> checksum_of(const std::string& where) const;

  /// A dataset whose extents, storage and type have been checked against the file.
  struct Checked {
    Dataset dataset;
    Shape shape;
    std::int64_t count = 0;           ///< elements
    H5T_class_t type = H5T_NO_CLASS;  ///< H5T_INTEGER, H5T_FLOAT or H5T_STRING
    std::int64_t element_bytes = 0;   ///< in the file
  };
  [[nodiscard]] Checked open_dataset(const std::string& where) const;

  /// Reads all of a dataset, converted. Requires: out.size() == count.
  void read(const Checked& from, const std::string& where, std::span<float> out) const;
  void read(const Checked& from, const std::string& where, std::span<double> out) const;
  void read(const Checked& from, const std::string& where, std::span<std::int64_t> out) const;
  /// A scalar dataset of any of the three types.
  [[nodiscard]] Attribute read_scalar(const std::string& where) const;

  /// Throws the InputError for this file: `FILE: where: message (hint)`.
  [[noreturn]] void refuse(const std::string& where, const std::string& message, const std::string& hint = {}) const;

 private:
  void read_raw(const Checked& from, const std::string& where, hid_t type, void* out) const;
  [[nodiscard]] bool has_object(const std::string& where, H5O_type_t type) const;

  std::filesystem::path path_;
  std::int64_t size_ = 0;
  File file_;
};

}  // namespace cleave::checkpoint::hdf5
