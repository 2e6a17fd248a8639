// Reference files: initial parameters, batches, and what an independent float64 run made of them.
//
// `check` trains on /batches from /init and compares with /expected; `data.batches` and `model.init` take their parts
// alone. Layout and meaning: tests/golden/README.md. Sizes are S steps, B windows, T tokens, V vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/tensor.hpp"

namespace cleave::checkpoint {

/// tokens, targets: [steps, batch, seq_len], row-major.
struct ReferenceBatches {
  std::int64_t steps = 0, batch = 0, seq_len = 0;
  std::vector<std::int32_t> tokens, targets;
};

/// Elements [begin, end) of a tensor whose expected values are rounding noise.
struct NoiseRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const NoiseRange&) const = default;
};

struct ReferenceTensor {
  std::string name;
  Shape shape;
  std::vector<double> values;
  std::optional<NoiseRange> noise;
  Attributes attributes;  ///< what a float32 run got: fp32_rel_l2_err and the like
};

struct Reference {
  Attributes attributes;  ///< of the root: family, sizes, optimizer, schedule
  std::vector<Tensor> init;
  ReferenceBatches batches;
  std::vector<double> loss, grad_norm, clip_coef, lr;      ///< [S]
  std::vector<double> logits_step0;                        ///< [T, V]
  std::int64_t vocab_size = 0;                             ///< V
  std::vector<ReferenceTensor> grads_step0, params_final;  ///< names and shapes of `init`, in its order
  double loss_after = 0;
  std::vector<double> loss_fp32, grad_norm_fp32;  ///< [S], or empty where the file has none
  std::optional<double> loss_after_fp32;
};

/// Reads all of a reference file. Integers and floats of any width are taken, attributes that are not known are kept.
/// Errors: InputError, naming file and dataset, for a file that is missing, damaged, or in which something is absent
/// or does not fit the rest.
[[nodiscard]] Reference read_reference(const std::filesystem::path& path);

/// Reads /batches alone. Errors: as read_reference().
[[nodiscard]] ReferenceBatches read_batches(const std::filesystem::path& path);

}  // namespace cleave::checkpoint
