// Reading checkpoints: the header with its checksum first, tensors one by one after it, each against its own.
#include <fmt/format.h>

#include <algorithm>

#include "checksum.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "hdf5.hpp"
#include "snapshot_layout.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDamagedSnapshot = "damaged: take an older checkpoint";

std::string join(const char* where, const std::string& name) { return fmt::format("{}/{}", where, name); }

class Reader {
 public:
  explicit Reader(const fs::path& path) : file_(path) {
    if (file_.has_group(kModel)) {
      header_.kind = FileKind::checkpoint;
    } else if (file_.has_group(kInit)) {
      header_.kind = FileKind::reference;
    } else {
      file_.refuse("", "is neither a checkpoint nor a reference file", "a checkpoint has a group /model");
    }
    header_.file_size = Bytes(file_.size());
    read_root();
    if (header_.kind == FileKind::checkpoint) {
      read_checkpoint();
    } else {
      header_.model = list_tensors(kInit);
    }
  }

  [[nodiscard]] const Header& header() const { return header_; }
  [[nodiscard]] const char* model_group() const { return header_.kind == FileKind::checkpoint ? kModel : kInit; }

  /// Reads one tensor and compares its checksum. Requires: out has the size that the header states.
  void read(const char* group, const std::string& name, std::span<float> out) const {
    const std::string where = join(group, name);
    const auto dataset = file_.open_dataset(where);
    file_.read(dataset, where, out);
    const auto known = datasets_.find(where);
    if (known != datasets_.end() && checksum(out.data(), out.size_bytes()) != known->second.sum) {
      file_.refuse(where, "its checksum differs", kDamagedSnapshot);
    }
  }

  [[nodiscard]] std::vector<Tensor> read_all(const char* group, const std::vector<TensorInfo>& infos) const {
    std::vector<Tensor> tensors;
    tensors.reserve(infos.size());
    for (const TensorInfo& info : infos) {
      tensors.push_back(
          {info.name, info.shape, std::vector<float>(static_cast<std::size_t>(*element_count(info.shape)))});
      read(group, info.name, tensors.back().data);
    }
    return tensors;
  }

  [[noreturn]] void refuse(const std::vector<std::string>& faults, const std::string& hint) const {
    std::vector<Issue> issues;
    for (const std::string& fault : faults) {
      issues.push_back(Issue{.file = file_.path().string(), .line = 0, .key = {}, .message = fault, .hint = hint});
    }
    throw InputError(std::move(issues));
  }

 private:
  void read_root() {
    header_.attributes = file_.attributes_of("/");
    header_.attributes.erase("xxh3");
    const auto version = find_integer(header_.attributes, "format_version");
    if (!version) file_.refuse("", "has no format_version", kDamagedSnapshot);
    if (*version < 1 || *version > kFormatVersion) {
      file_.refuse("", fmt::format("is of format {}; formats 1 to {} are read", *version, kFormatVersion),
                   "written by a newer version of this program?");
    }
    header_.format_version = *version;
    root_attributes_ = header_.attributes;
    header_.cleave_version = find_text(header_.attributes, "cleave_version").value_or("");
    header_.attributes.erase("format_version");
    header_.attributes.erase("cleave_version");
  }

  void read_checkpoint() {
    header_.model = list_tensors(kModel);
    if (file_.has_group(kExpAvg)) header_.exp_avg = list_tensors(kExpAvg);
    if (file_.has_group(kExpAvgSq)) header_.exp_avg_sq = list_tensors(kExpAvgSq);
    if (file_.has_group(kState)) {
      for (const std::string& name : file_.names_in(kState)) read_state(name);
    }
    const auto sum = file_.checksum_of("/");
    if (!sum) file_.refuse("", "its root has no checksum xxh3", kDamagedSnapshot);
    if (*sum != summary_checksum(root_attributes_, datasets_)) {
      file_.refuse("", "attributes or datasets are not those that were written: the root's checksum differs",
                   kDamagedSnapshot);
    }
  }

  void read_state(const std::string& name) {
    const std::string where = join(kState, name);
    Attribute value = file_.read_scalar(where);
    const auto sum = file_.checksum_of(where);
    if (!sum) file_.refuse(where, "has no checksum xxh3", kDamagedSnapshot);
    if (*sum != hdf5::checksum_of_value(value)) file_.refuse(where, "its checksum differs", kDamagedSnapshot);
    datasets_[where] = {{}, *sum};
    header_.state[name] = std::move(value);
  }

  /// The tensors of a group, by name; for checkpoints their checksums too, of which each must have one.
  std::vector<TensorInfo> list_tensors(const char* group) {
    std::vector<TensorInfo> infos;
    for (const std::string& name : file_.names_in(group)) {
      const std::string where = join(group, name);
      const auto dataset = file_.open_dataset(where);
      if (dataset.type != H5T_FLOAT || dataset.element_bytes != 4)
        file_.refuse(where, "is not of type f32", kDamagedSnapshot);
      if (header_.kind == FileKind::checkpoint) {
        const auto sum = file_.checksum_of(where);
        if (!sum) file_.refuse(where, "has no checksum xxh3", kDamagedSnapshot);
        datasets_[where] = {dataset.shape, *sum};
      }
      infos.push_back({name, dataset.shape});
    }
    return infos;
  }

  hdf5::ReadFile file_;
  Header header_;
  Attributes root_attributes_;
  std::map<std::string, DatasetSummary> datasets_;
};

std::vector<TensorInfo> infos_of(const std::vector<TensorTarget>& targets) {
  std::vector<TensorInfo> infos;
  for (const TensorTarget& target : targets) infos.push_back({target.name, target.shape});
  return infos;
}

/// What `found` has of the names that `wanted` has.
std::vector<TensorInfo> only(const std::vector<TensorInfo>& found, const std::vector<TensorInfo>& wanted) {
  std::vector<TensorInfo> out;
  for (const TensorInfo& info : found) {
    if (std::ranges::any_of(wanted, [&](const TensorInfo& w) { return w.name == info.name; })) out.push_back(info);
  }
  return out;
}

}  // namespace

Header read_header(const fs::path& path) { return Reader(path).header(); }

Snapshot read_snapshot(const fs::path& path) {
  const Reader reader(path);
  const Header& header = reader.header();
  return Snapshot{header.attributes, header.state, reader.read_all(reader.model_group(), header.model),
                  reader.read_all(kExpAvg, header.exp_avg), reader.read_all(kExpAvgSq, header.exp_avg_sq)};
}

Header read_snapshot_into(const fs::path& path, const SnapshotTarget& target) {
  const Reader reader(path);
  const Header& header = reader.header();

  std::vector<std::string> faults;
  const auto compare = [&](const std::string& what, const std::vector<TensorInfo>& wanted,
                           const std::vector<TensorInfo>& found) {
    for (const std::string& line : describe_mismatch(wanted, found)) faults.push_back(what + line);
  };
  compare("tensor ", infos_of(target.model), header.model);
  // Moments of tensors that are no longer trained are left alone.
  const auto exp_avg = infos_of(target.exp_avg), exp_avg_sq = infos_of(target.exp_avg_sq);
  compare("first moment of ", exp_avg, only(header.exp_avg, exp_avg));
  compare("second moment of ", exp_avg_sq, only(header.exp_avg_sq, exp_avg_sq));
  if (!faults.empty()) reader.refuse(faults, "a checkpoint of another model?");

  const auto read_into = [&](const char* group, const std::vector<TensorTarget>& targets) {
    for (const TensorTarget& tensor : targets) reader.read(group, tensor.name, tensor.data);
  };
  read_into(reader.model_group(), target.model);
  read_into(kExpAvg, target.exp_avg);
  read_into(kExpAvgSq, target.exp_avg_sq);
  return header;
}

void verify_snapshot(const fs::path& path) {
  const Reader reader(path);
  const Header& header = reader.header();
  std::vector<float> data;
  const auto verify = [&](const char* group, const std::vector<TensorInfo>& infos) {
    for (const TensorInfo& info : infos) {
      data.resize(static_cast<std::size_t>(*element_count(info.shape)));
      reader.read(group, info.name, data);
    }
  };
  verify(reader.model_group(), header.model);
  verify(kExpAvg, header.exp_avg);
  verify(kExpAvgSq, header.exp_avg_sq);
}

}  // namespace cleave::checkpoint
