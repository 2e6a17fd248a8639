// The writing half of hdf5.hpp, and the library's error stack as text.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "checksum.hpp"
#include "cleave/base/error.hpp"
#include "hdf5.hpp"

namespace cleave::checkpoint::hdf5 {

namespace fs = std::filesystem;

void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string error_text() {
  struct Ends {
    std::string outermost, innermost;
  } ends;
  const auto visit = [](unsigned index, const H5E_error2_t* error, void* data) -> herr_t {
    auto& found = *static_cast<Ends*>(data);
    const std::string text = error->desc ? error->desc : "";
    if (index == 0) found.outermost = text;
    found.innermost = text;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, visit, &ends);
  if (ends.outermost.empty()) return "HDF5 gives no reason";
  return ends.outermost == ends.innermost ? ends.outermost : ends.outermost + ": " + ends.innermost;
}

namespace {

/// The type that a value has in files. Strings: fixed length, null-padded, at least one byte.
Type file_type(const Attribute& value) {
  if (std::holds_alternative<std::int64_t>(value)) return Type(H5Tcopy(H5T_STD_I64LE));
  if (std::holds_alternative<double>(value)) return Type(H5Tcopy(H5T_IEEE_F64LE));
  const auto& text = std::get<std::string>(value);
  Type type(H5Tcopy(H5T_C_S1));
  bool ascii = true;
  for (const char c : text) ascii = ascii && static_cast<unsigned char>(c) < 0x80;
  H5Tset_size(type.get(), std::max<std::size_t>(1, text.size()));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), ascii ? H5T_CSET_ASCII : H5T_CSET_UTF8);
  return type;
}

/// The bytes of a value as file_type() lays them out.
std::span<const char> bytes_of(const Attribute& value) {
  return std::visit(
      [](const auto& v) -> std::span<const char> {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
          return {v.c_str(), std::max<std::size_t>(1, v.size())};
        } else {
          return {reinterpret_cast<const char*>(&v), sizeof v};
        }
      },
      value);
}

/// Properties of a file, a group or a dataset that is made: without the time of writing, so that the same values are
/// the same bytes.
Properties timeless(hid_t kind) {
  Properties properties(H5Pcreate(kind));
  H5Pset_obj_track_times(properties.get(), false);
  return properties;
}

/// Properties of datasets: allocated at once, never filled, so that data goes to the file once.
Properties dataset_properties() {
  Properties properties = timeless(H5P_DATASET_CREATE);
  H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
  H5Pset_layout(properties.get(), H5D_CONTIGUOUS);
  return properties;
}

}  // namespace

std::uint64_t checksum_of_value(const Attribute& value) {
  const std::span<const char> bytes = bytes_of(value);
  return checksum(bytes.data(), bytes.size());
}

void WriteFile::check_disk() const {
  if (failure_->operation != nullptr) {
    throw EnvironmentError(failure_->operation, path_, std::strerror(failure_->error));
  }
}

/// Passes an identifier or status on, or throws with the reason: the disk's where it has one, else the library's.
template <class T>
T WriteFile::check(T result, const char* operation, const std::string& object, std::source_location where) const {
  if (result < 0) {
    const std::string reason = error_text();
    check_disk();
    throw EnvironmentError(operation, path_ + ": " + object, reason, where);
  }
  return result;
}

WriteFile::WriteFile(const fs::path& path) : path_(path.string()) {
  silence();
  const Properties access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  use_file_driver(access.get(), failure_.get());
  const Properties creation = timeless(H5P_FILE_CREATE);
  file_ = File(check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), "create", "/"));
}

void WriteFile::close() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), "write", "/");
  check(file_.close(), "close", "/");
  check_disk();
}

Group WriteFile::create_group(const std::string& name) {
  const Properties creation = timeless(H5P_GROUP_CREATE);
  return Group(
      check(H5Gcreate2(file_.get(), name.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), "create group", name));
}

void WriteFile::write_attribute(hid_t object, const std::string& name, const Attribute& value) {
  const std::string what = "attribute " + name;
  const Type type = file_type(value);
  const Space space(H5Screate(H5S_SCALAR));
  const AttributeHandle attribute(
      check(H5Acreate2(object, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), "create", what));
  check(H5Awrite(attribute.get(), type.get(), bytes_of(value).data()), "write", what);
}

void WriteFile::write_checksum(hid_t object, std::uint64_t sum) {
  const Space space(H5Screate(H5S_SCALAR));
  const AttributeHandle attribute(check(
      H5Acreate2(object, "xxh3", H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), "create", "attribute xxh3"));
  check(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &sum), "write", "attribute xxh3");
}

std::uint64_t WriteFile::write_tensor(const Group& group, const TensorView& tensor) {
  const std::vector<hsize_t> extents(tensor.shape.begin(), tensor.shape.end());
  const Space space(extents.empty() ? H5Screate(H5S_SCALAR)
                                    : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
  check(space.get(), "lay out", tensor.name);
  const Properties properties = dataset_properties();
  const Dataset dataset(check(H5Dcreate2(group.get(), tensor.name.c_str(), H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                                         properties.get(), H5P_DEFAULT),
                              "create", tensor.name));
  check(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data.data()), "write",
        tensor.name);
  const std::uint64_t sum = checksum(tensor.data.data(), tensor.data.size_bytes());
  write_checksum(dataset.get(), sum);
  check_disk();  // a full disk ends the writing here, not after the last tensor
  return sum;
}

std::uint64_t WriteFile::write_scalar(const Group& group, const std::string& name, const Attribute& value) {
  const Type type = file_type(value);
  const Space space(H5Screate(H5S_SCALAR));
  const Properties properties = dataset_properties();
  const Dataset dataset(
      check(H5Dcreate2(group.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
            "create", name));
  check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes_of(value).data()), "write", name);
  const std::uint64_t sum = checksum_of_value(value);
  write_checksum(dataset.get(), sum);
  return sum;
}

}  // namespace cleave::checkpoint::hdf5
