// Safetensors files: reading single and sharded models of any writer, writing fp32 and bf16.
//
// A file is an 8-byte little-endian header length, a JSON header naming each tensor's type, shape and range of bytes,
// and the bytes. Files come from strangers: every length is checked before memory is taken or a byte is touched.
// Source: github.com/huggingface/safetensors, README, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/checkpoint/tensor.hpp"

namespace cleave::checkpoint {

struct SafetensorsInfo {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", "F16", "I64", ...
  Shape shape;
};

/// An open model, memory-mapped: tensors are read, and converted to fp32, one at a time.
class SafetensorsFile {
 public:
  /// Opens FILE.safetensors, an index (*.json) with the shards beside it, or a folder with model.safetensors or
  /// model.safetensors.index.json.
  /// Errors: InputError, naming file and tensor, for what is missing, cut short or malformed.
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// In order of name.
  [[nodiscard]] const std::vector<SafetensorsInfo>& tensors() const;
  /// The `__metadata__` of the file, or of all shards together.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  /// Reads a tensor, converting F16 and BF16 to fp32.
  /// Requires: out.size() is the product of its shape.
  /// Errors: InputError where there is no such tensor or it is of another type than F32, F16 or BF16.
  void read(std::string_view name, std::span<float> out) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// All tensors of a model, in order of name.
/// Errors: InputError, as SafetensorsFile, and for a tensor of another type than F32, F16 or BF16.
[[nodiscard]] std::vector<Tensor> read_safetensors(const std::filesystem::path& path);

/// Writes tensors in the order given, as fp32 or rounded to bf16, and puts the file at `path` in one step.
/// Requires: type is f32 or bf16; names are distinct; data.size() is the product of shape.
/// Errors: EnvironmentError.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors, DType type,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cleave::checkpoint
