// Checkpoints: everything that a training run needs to go on, in one HDF5 file that is whole or is refused.
//
// The server writes one every so many steps and reads one to resume; `generate`, `info` and `export` read them.
//   /                         attributes: format_version, cleave_version, the model's configuration
//   /model/NAME               f32, Hugging Face names and shapes, contiguous
//   /optimizer/exp_avg/NAME, /optimizer/exp_avg_sq/NAME   f32, for every tensor that is trained
//   /state/NAME               scalars: i64, f64 or text (step, data position, seeds, tokenizer, ...)
// Every dataset has an attribute `xxh3`, the XXH3-64 of its bytes; the root's covers names, shapes, attributes and
// those sums. The last 24 bytes are a seal, "CLVSEAL1", the length and the XXH3-64 of all bytes before it, so damage
// is noticed before the HDF5 library interprets it. One thread at a time: the HDF5 library is not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/checkpoint/tensor.hpp"

namespace cleave::checkpoint {

inline constexpr std::int64_t kFormatVersion = 1;

/// What write_snapshot() stores. Nothing is copied.
struct SnapshotView {
  Attributes attributes;  ///< the model's configuration; format_version and cleave_version are added
  Attributes state;
  std::vector<TensorView> model;
  std::vector<TensorView> exp_avg;     ///< first moments: names and shapes of trained tensors of `model`
  std::vector<TensorView> exp_avg_sq;  ///< second moments, of the same tensors
};

/// A checkpoint in memory of its own.
struct Snapshot {
  Attributes attributes;
  Attributes state;
  std::vector<Tensor> model;
  std::vector<Tensor> exp_avg;
  std::vector<Tensor> exp_avg_sq;
  bool operator==(const Snapshot&) const = default;
};

/// A view of a checkpoint in memory. Requires: `snapshot` outlives the view.
[[nodiscard]] SnapshotView view_of(const Snapshot& snapshot);

enum class FileKind { checkpoint, reference };

/// All of a file but the tensors' data. Lists are in order of name.
struct Header {
  FileKind kind = FileKind::checkpoint;
  std::int64_t format_version = 0;
  std::string cleave_version;  ///< empty for a reference file
  Bytes file_size;
  Attributes attributes;  ///< without format_version and cleave_version
  Attributes state;
  std::vector<TensorInfo> model;  ///< of a reference file: /init
  std::vector<TensorInfo> exp_avg;
  std::vector<TensorInfo> exp_avg_sq;
};

/// Memory to read tensors into. An empty list of moments means that they are not wanted.
struct SnapshotTarget {
  std::vector<TensorTarget> model;
  std::vector<TensorTarget> exp_avg;
  std::vector<TensorTarget> exp_avg_sq;
};

/// Writes the checkpoint and puts it at `path` in one step: at every instant `path` is the old file or the new one.
/// Requires: within each list names are distinct; data.size() is the product of shape; moments are of model tensors.
/// Errors: EnvironmentError (folder, disk, HDF5), with `path` as it was. InputError for a name that cannot be stored
/// (empty, ".", or holding '/' or NUL: names may come from a file of the user's).
void write_snapshot(const std::filesystem::path& path, const SnapshotView& snapshot);

/// Reads the header of a checkpoint, or of a reference file (golden/README.md), and checks all that can be checked
/// without reading tensors one by one; a seal is verified, which reads the file once.
/// Errors: InputError, naming file and dataset, for a file that is missing, cut short, damaged, of a newer format or
/// none of the two kinds. EnvironmentError for failing reads.
[[nodiscard]] Header read_header(const std::filesystem::path& path);

/// Reads a checkpoint, verifying every checksum. Of a reference file: attributes and /init.
/// Errors: as read_header(), and for any dataset whose checksum differs.
[[nodiscard]] Snapshot read_snapshot(const std::filesystem::path& path);

/// Reads tensors into `target`, verifying their checksums, and returns the rest.
/// Errors: as read_snapshot(); InputError listing every tensor of `target` that the file lacks or has in another
/// shape, and every tensor of the file's model that `target` lacks. `target` is then in part overwritten or untouched.
Header read_snapshot_into(const std::filesystem::path& path, const SnapshotTarget& target);

/// Reads the whole file and verifies every checksum, keeping nothing.
/// Errors: as read_snapshot().
void verify_snapshot(const std::filesystem::path& path);

}  // namespace cleave::checkpoint
