// What files hold: named fp32 tensors and named attributes. Plain values; no file format shows here.
//
// A tensor's name is its Hugging Face state-dict name, its data is row-major without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cleave::checkpoint {

using Shape = std::vector<std::int64_t>;

/// Number of elements of a shape (1 for a scalar), or nothing where an extent is negative or the product does not fit.
[[nodiscard]] std::optional<std::int64_t> element_count(const Shape& shape);

/// `[2, 3]`.
[[nodiscard]] std::string to_string(const Shape& shape);

/// Name and shape of a tensor.
struct TensorInfo {
  std::string name;
  Shape shape;
  bool operator==(const TensorInfo&) const = default;
};

/// A tensor that owns its data.
struct Tensor {
  std::string name;
  Shape shape;
  std::vector<float> data;
  bool operator==(const Tensor&) const = default;
};

/// A tensor to be written; somebody else owns the data.
struct TensorView {
  std::string name;
  Shape shape;
  std::span<const float> data;
};

/// A tensor to be read into memory that somebody else owns.
struct TensorTarget {
  std::string name;
  Shape shape;
  std::span<float> data;
};

/// Views of tensors, in their order. Requires: `tensors` outlive the views.
[[nodiscard]] std::vector<TensorView> views_of(std::span<const Tensor> tensors);

/// One line for each tensor that is missing from `found`, surplus in it, or of another shape than expected.
[[nodiscard]] std::vector<std::string> describe_mismatch(std::span<const TensorInfo> expected,
                                                         std::span<const TensorInfo> found);

/// A named value of a file.
using Attribute = std::variant<std::int64_t, double, std::string>;
using Attributes = std::map<std::string, Attribute>;

/// The attribute of that name, or nothing where there is none or it has another type. A whole number is a number.
[[nodiscard]] std::optional<std::int64_t> find_integer(const Attributes& attributes, std::string_view name);
[[nodiscard]] std::optional<double> find_number(const Attributes& attributes, std::string_view name);
[[nodiscard]] std::optional<std::string> find_text(const Attributes& attributes, std::string_view name);

}  // namespace cleave::checkpoint
