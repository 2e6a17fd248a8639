// The reading half of hdf5.hpp: a file is believed only as far as it has been checked.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "checksum.hpp"
#include "cleave/base/error.hpp"
#include "hdf5.hpp"
#include "mapped_file.hpp"

namespace cleave::checkpoint::hdf5 {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamagedFile = "the file is damaged, or not what this program writes";
constexpr std::size_t kMostNames = 1'000'000;   // in one group; a model has some thousands
constexpr std::size_t kLongestText = 64 << 20;  // of an attribute or scalar
constexpr std::int64_t kMostExpansion = 1100;   // deflate cannot do better than 1032

/// Calls visit for each link or attribute name; the library's iteration with what it needs to be safe in C.
struct NameList {
  std::vector<std::string> names;
  bool too_many = false;
  herr_t add(const char* name) noexcept {
    if (names.size() >= kMostNames) {
      too_many = true;
      return -1;
    }
    try {
      names.emplace_back(name);
    } catch (...) { return -1; }
    return 0;
  }
};

/// A string of the library's conventions as text: fixed length without padding, or of variable length.
std::optional<std::string> read_text(hid_t type, const auto& read_into) {
  if (H5Tis_variable_str(type) > 0) {
    const Type memory(H5Tcopy(type));
    char* text = nullptr;
    if (read_into(memory.get(), static_cast<void*>(&text)) < 0 || text == nullptr) return std::nullopt;
    std::string copy = text;
    H5free_memory(text);
    return copy;
  }
  const std::size_t size = H5Tget_size(type);
  if (size == 0 || size > kLongestText) return std::nullopt;
  std::string text(size, '\0');
  if (read_into(type, static_cast<void*>(text.data())) < 0) return std::nullopt;
  if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) {
    text.erase(text.find_last_not_of(' ') + 1);
  } else if (const auto end = text.find('\0'); end != std::string::npos) {
    text.resize(end);
  }
  return text;
}

/// A scalar of any type that attributes may have, through read_into(memory type, memory).
std::optional<Attribute> read_value(hid_t type, const auto& read_into) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
    case H5T_ENUM: {  // h5py's booleans
      std::int64_t value = 0;
      if (H5Tget_size(type) > 8 || read_into(H5T_NATIVE_INT64, static_cast<void*>(&value)) < 0) return std::nullopt;
      return value;
    }
    case H5T_FLOAT: {
      double value = 0;
      if (read_into(H5T_NATIVE_DOUBLE, static_cast<void*>(&value)) < 0) return std::nullopt;
      return value;
    }
    case H5T_STRING:
      if (auto text = read_text(type, read_into)) return Attribute(std::move(*text));
      return std::nullopt;
    default: return std::nullopt;
  }
}

bool is_single(hid_t space) { return space >= 0 && H5Sget_simple_extent_npoints(space) == 1; }

}  // namespace

ReadFile::ReadFile(const fs::path& path) : path_(path) {
  silence();
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::none) throw UnreadableFile(path, error.message());
  if (!fs::exists(status)) refuse("", "no such file");
  if (!fs::is_regular_file(status)) refuse("", "not a file");
  size_ = static_cast<std::int64_t>(fs::file_size(path, error));
  if (error) throw EnvironmentError("stat", path.string(), error.message());
  if (::access(path.c_str(), R_OK) != 0) throw UnreadableFile(path, std::strerror(errno));
  // Before the library sees it: a damaged file must not reach code that trusts it.
  if (check_seal(path) == Seal::wrong) {
    refuse("", "damaged: its bytes do not add up to the checksum at its end", "take an older checkpoint");
  }

  Properties access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7)
  H5Pset_file_locking(access.get(), false, true);
#endif
  file_ = File(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()));
  if (!file_.valid()) {
    const std::string reason = error_text();
    refuse("", "cannot be opened as an HDF5 file: " + reason, "cut short, damaged, or of another format");
  }
}

void ReadFile::refuse(const std::string& where, const std::string& message, const std::string& hint) const {
  throw InputError(std::vector<Issue>{Issue{.file = path_.string(),
                                            .line = 0,
                                            .key = {},
                                            .message = where.empty() ? message : where + ": " + message,
                                            .hint = hint}});
}

bool ReadFile::has_object(const std::string& where, H5O_type_t type) const {
  // Each step of the name must be a hard link; a soft or external one may lead out of the file.
  for (std::size_t end = where.find('/', 1);; end = where.find('/', end + 1)) {
    const std::string part = where.substr(0, end);
    H5L_info_t link{};
    if (H5Lexists(file_.get(), part.c_str(), H5P_DEFAULT) <= 0) return false;
    if (H5Lget_info(file_.get(), part.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return false;
    if (end == std::string::npos) break;
  }
  H5O_info_t info{};
#if H5_VERSION_GE(1, 12, 0)
  if (H5Oget_info_by_name3(file_.get(), where.c_str(), &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return false;
#else
  if (H5Oget_info_by_name2(file_.get(), where.c_str(), &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return false;
#endif
  return info.type == type;
}

bool ReadFile::has_group(const std::string& where) const { return has_object(where, H5O_TYPE_GROUP); }
bool ReadFile::has_dataset(const std::string& where) const { return has_object(where, H5O_TYPE_DATASET); }

std::vector<std::string> ReadFile::names_in(const std::string& where) const {
  const Group group(H5Gopen2(file_.get(), where.c_str(), H5P_DEFAULT));
  if (!group.valid()) refuse(where, "cannot be read: " + error_text(), kDamagedFile);
  NameList list;
  hsize_t position = 0;
  const auto visit = [](hid_t, const char* name, const H5L_info_t*, void* data) -> herr_t {
    return static_cast<NameList*>(data)->add(name);
  };
  if (H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, &position, visit, &list) < 0) {
    refuse(where, list.too_many ? "holds too many objects" : "cannot be listed: " + error_text(), kDamagedFile);
  }
  for (const std::string& name : list.names) {
    const std::string object = (where == "/" ? "" : where) + "/" + name;
    if (!has_dataset(object) && !has_group(object)) refuse(object, "is neither a dataset nor a group", kDamagedFile);
  }
  std::sort(list.names.begin(), list.names.end());
  return list.names;
}

Attributes ReadFile::attributes_of(const std::string& where) const {
  NameList list;
  hsize_t position = 0;
  const auto visit = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    return static_cast<NameList*>(data)->add(name);
  };
  if (H5Aiterate_by_name(file_.get(), where.c_str(), H5_INDEX_NAME, H5_ITER_INC, &position, visit, &list, H5P_DEFAULT) <
      0) {
    refuse(where, "its attributes cannot be read: " + error_text(), kDamagedFile);
  }
  Attributes attributes;
  for (const std::string& name : list.names) {
    const AttributeHandle attribute(
        H5Aopen_by_name(file_.get(), where.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
    if (!attribute.valid()) refuse(where, "attribute " + name + " cannot be read: " + error_text(), kDamagedFile);
    const Space space(H5Aget_space(attribute.get()));
    const Type type(H5Aget_type(attribute.get()));
    if (!is_single(space.get()) || !type.valid()) continue;
    auto value = read_value(
        type.get(), [&](hid_t memory_type, void* memory) { return H5Aread(attribute.get(), memory_type, memory); });
    if (value) attributes[name] = std::move(*value);
  }
  return attributes;
}

std::optional<std::uint64_t> ReadFile::checksum_of(const std::string& where) const {
  if (H5Aexists_by_name(file_.get(), where.c_str(), "xxh3", H5P_DEFAULT) <= 0) return std::nullopt;
  const AttributeHandle attribute(H5Aopen_by_name(file_.get(), where.c_str(), "xxh3", H5P_DEFAULT, H5P_DEFAULT));
  const Space space(H5Aget_space(attribute.get()));
  const Type type(H5Aget_type(attribute.get()));
  if (!is_single(space.get()) || H5Tget_class(type.get()) != H5T_INTEGER) return std::nullopt;
  std::uint64_t sum = 0;
  if (H5Aread(attribute.get(), H5T_NATIVE_UINT64, &sum) < 0) return std::nullopt;
  return sum;
}

ReadFile::Checked ReadFile::open_dataset(const std::string& where) const {
  if (!has_dataset(where)) refuse(where, "no such dataset");
  Checked out;
  out.dataset = Dataset(H5Dopen2(file_.get(), where.c_str(), H5P_DEFAULT));
  if (!out.dataset.valid()) refuse(where, "cannot be opened: " + error_text(), kDamagedFile);
  const Type type(H5Dget_type(out.dataset.get()));
  out.type = H5Tget_class(type.get());
  if (out.type != H5T_INTEGER && out.type != H5T_FLOAT && out.type != H5T_STRING) {
    refuse(where, "holds neither numbers nor text", kDamagedFile);
  }
  out.element_bytes = static_cast<std::int64_t>(H5Tget_size(type.get()));
  if (out.type != H5T_STRING && (out.element_bytes < 1 || out.element_bytes > 8)) {
    refuse(where, fmt::format("holds numbers of {} bytes", out.element_bytes), kDamagedFile);
  }

  const Space space(H5Dget_space(out.dataset.get()));
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0 || H5Sget_simple_extent_type(space.get()) == H5S_NULL) refuse(where, "has no extents", kDamagedFile);
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  for (const hsize_t extent : extents) {
    constexpr auto kMost = static_cast<hsize_t>(std::numeric_limits<std::int64_t>::max());
    out.shape.push_back(static_cast<std::int64_t>(std::min(extent, kMost)));
  }
  const auto count = element_count(out.shape);
  std::int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, out.element_bytes, &bytes)) {
    refuse(where, fmt::format("its extents {} are impossible", to_string(out.shape)), kDamagedFile);
  }
  out.count = *count;

  // The bytes must lie in this file: not in others, not unwritten, not more than it can hold.
  const Properties properties(H5Dget_create_plist(out.dataset.get()));
  const H5D_layout_t layout = H5Pget_layout(properties.get());
  if (H5Pget_external_count(properties.get()) > 0 || layout == H5D_VIRTUAL) {
    refuse(where, "keeps its data in other files", "copy it into one file, for instance with h5repack");
  }
  const auto stored = static_cast<std::int64_t>(
      std::min<hsize_t>(H5Dget_storage_size(out.dataset.get()), std::numeric_limits<std::int64_t>::max()));
  const std::int64_t most = layout == H5D_CHUNKED && stored < size_ ? stored * kMostExpansion : size_;
  if (stored > size_ || bytes > most || (layout != H5D_CHUNKED && stored < bytes)) {
    refuse(where,
           fmt::format("{} elements {} do not lie in a file of {} bytes", out.count, to_string(out.shape), size_),
           "cut short or damaged");
  }
  return out;
}

void ReadFile::read_raw(const Checked& from, const std::string& where, hid_t type, void* out) const {
  if (from.count == 0) return;
  if (H5Dread(from.dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
    const std::string reason = error_text();
    refuse(where, "cannot be read: " + reason, "cut short or damaged");
  }
}

void ReadFile::read(const Checked& from, const std::string& where, std::span<float> out) const {
  CLEAVE_ASSERT(static_cast<std::int64_t>(out.size()) == from.count, "{} of {} elements", out.size(), from.count);
  if (from.type != H5T_FLOAT) refuse(where, "does not hold floating-point numbers", kDamagedFile);
  read_raw(from, where, H5T_NATIVE_FLOAT, out.data());
}

void ReadFile::read(const Checked& from, const std::string& where, std::span<double> out) const {
  CLEAVE_ASSERT(static_cast<std::int64_t>(out.size()) == from.count, "{} of {} elements", out.size(), from.count);
  if (from.type != H5T_FLOAT) refuse(where, "does not hold floating-point numbers", kDamagedFile);
  read_raw(from, where, H5T_NATIVE_DOUBLE, out.data());
}

void ReadFile::read(const Checked& from, const std::string& where, std::span<std::int64_t> out) const {
  CLEAVE_ASSERT(static_cast<std::int64_t>(out.size()) == from.count, "{} of {} elements", out.size(), from.count);
  if (from.type != H5T_INTEGER) refuse(where, "does not hold integers", kDamagedFile);
  read_raw(from, where, H5T_NATIVE_INT64, out.data());
}

Attribute ReadFile::read_scalar(const std::string& where) const {
  const Checked from = open_dataset(where);
  if (from.count != 1) refuse(where, fmt::format("is {}, not one value", to_string(from.shape)), kDamagedFile);
  const Type type(H5Dget_type(from.dataset.get()));
  auto value = read_value(type.get(), [&](hid_t memory_type, void* memory) {
    return H5Dread(from.dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, memory);
  });
  if (!value) refuse(where, "cannot be read", kDamagedFile);
  return std::move(*value);
}

}  // namespace cleave::checkpoint::hdf5
