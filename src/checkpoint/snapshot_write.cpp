// Writing a checkpoint: datasets, then the root's attributes and checksum, then the seal, then the rename.
#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <set>

#include "checksum.hpp"
#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/version.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "hdf5.hpp"
#include "snapshot_layout.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;

std::uint64_t summary_checksum(const Attributes& attributes, const std::map<std::string, DatasetSummary>& datasets) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const auto& [name, value] : attributes) {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) fmt::format_to(out, "@{} i {}\n", name, *integer);
    if (const auto* number = std::get_if<double>(&value)) {
      fmt::format_to(out, "@{} f {:016x}\n", name, std::bit_cast<std::uint64_t>(*number));
    }
    if (const auto* string = std::get_if<std::string>(&value)) fmt::format_to(out, "@{} s {}\n", name, *string);
  }
  for (const auto& [name, dataset] : datasets) {
    fmt::format_to(out, "{} {} {:016x}\n", name, to_string(dataset.shape), dataset.sum);
  }
  return checksum(text.data(), text.size());
}

SnapshotView view_of(const Snapshot& snapshot) {
  return SnapshotView{snapshot.attributes, snapshot.state, views_of(snapshot.model), views_of(snapshot.exp_avg),
                      views_of(snapshot.exp_avg_sq)};
}

namespace {

void check_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw InputError(fmt::format("a tensor called \"{}\" cannot be stored in a checkpoint", name),
                     "names must not be empty or hold '/'");
  }
}

void check_tensors(const std::vector<TensorView>& tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    check_name(tensor.name);
    CLEAVE_ASSERT(names.insert(tensor.name).second, "tensor {} twice", tensor.name);
    CLEAVE_ASSERT(element_count(tensor.shape) == static_cast<std::int64_t>(tensor.data.size()),
                  "tensor {} {} of {} elements", tensor.name, to_string(tensor.shape), tensor.data.size());
  }
}

/// Moments belong to tensors of the model, both kinds to the same ones.
void check_moments(const SnapshotView& snapshot) {
  std::map<std::string_view, const Shape*> model;
  for (const TensorView& tensor : snapshot.model) model[tensor.name] = &tensor.shape;
  CLEAVE_ASSERT(snapshot.exp_avg.size() == snapshot.exp_avg_sq.size(), "{} first moments, {} second",
                snapshot.exp_avg.size(), snapshot.exp_avg_sq.size());
  for (const auto* moments : {&snapshot.exp_avg, &snapshot.exp_avg_sq}) {
    for (const TensorView& tensor : *moments) {
      const auto found = model.find(tensor.name);
      CLEAVE_ASSERT(found != model.end() && *found->second == tensor.shape, "moment {} {} of no tensor", tensor.name,
                    to_string(tensor.shape));
    }
  }
}

void check_values(const Attributes& attributes) {
  for (const auto& [name, value] : attributes) {
    check_name(name);
    const auto* text = std::get_if<std::string>(&value);
    CLEAVE_ASSERT(text == nullptr || text->find('\0') == std::string::npos, "NUL in the text of {}", name);
  }
}

/// Fills one HDF5 file. Remembers what it wrote for the root's checksum.
class Writer {
 public:
  explicit Writer(const fs::path& path) : file_(path) { (void)file_.create_group(kOptimizer); }

  void write_tensors(const char* where, const std::vector<TensorView>& tensors) {
    const hdf5::Group group = file_.create_group(where);
    for (const TensorView& tensor : tensors) {
      const std::uint64_t sum = file_.write_tensor(group, tensor);
      datasets_[fmt::format("{}/{}", where, tensor.name)] = {tensor.shape, sum};
    }
  }

  void write_state(const Attributes& state) {
    const hdf5::Group group = file_.create_group(kState);
    for (const auto& [name, value] : state) {
      const std::uint64_t sum = file_.write_scalar(group, name, value);
      datasets_[fmt::format("{}/{}", kState, name)] = {{}, sum};
    }
  }

  void finish(Attributes attributes) {
    attributes["format_version"] = kFormatVersion;
    attributes["cleave_version"] = std::string(kVersion);
    for (const auto& [name, value] : attributes) file_.write_attribute(file_.root(), name, value);
    file_.write_checksum(file_.root(), summary_checksum(attributes, datasets_));
    file_.close();
  }

 private:
  hdf5::WriteFile file_;
  std::map<std::string, DatasetSummary> datasets_;
};

}  // namespace

void write_snapshot(const fs::path& path, const SnapshotView& snapshot) {
  for (const auto* tensors : {&snapshot.model, &snapshot.exp_avg, &snapshot.exp_avg_sq}) check_tensors(*tensors);
  check_moments(snapshot);
  check_values(snapshot.attributes);
  check_values(snapshot.state);
  replace_file(path, [&](const fs::path& temporary) {
    Writer writer(temporary);
    writer.write_tensors(kModel, snapshot.model);
    writer.write_tensors(kExpAvg, snapshot.exp_avg);
    writer.write_tensors(kExpAvgSq, snapshot.exp_avg_sq);
    writer.write_state(snapshot.state);
    writer.finish(snapshot.attributes);
    append_seal(temporary);
  });
}

}  // namespace cleave::checkpoint
