// Shapes, attribute look-up, and the comparison of two lists of tensors.
#include "cleave/checkpoint/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cleave::checkpoint {

std::optional<std::int64_t> element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<TensorView> views_of(std::span<const Tensor> tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const Tensor& tensor : tensors) views.push_back({tensor.name, tensor.shape, tensor.data});
  return views;
}

std::vector<std::string> describe_mismatch(std::span<const TensorInfo> expected, std::span<const TensorInfo> found) {
  std::map<std::string_view, const Shape*> by_name;
  for (const TensorInfo& info : found) by_name[info.name] = &info.shape;
  std::vector<std::string> lines;
  for (const TensorInfo& info : expected) {
    const auto match = by_name.find(info.name);
    if (match == by_name.end()) {
      lines.push_back(fmt::format("{} {} is missing", info.name, to_string(info.shape)));
      continue;
    }
    if (*match->second != info.shape) {
      lines.push_back(fmt::format("{} is {}, not {}", info.name, to_string(*match->second), to_string(info.shape)));
    }
    by_name.erase(match);
  }
  for (const auto& [name, shape] : by_name) {
    lines.push_back(fmt::format("{} {} is not part of the model", name, to_string(*shape)));
  }
  return lines;
}

namespace {

const Attribute* find(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(std::string(name));
  return found == attributes.end() ? nullptr : &found->second;
}

}  // namespace

std::optional<std::int64_t> find_integer(const Attributes& attributes, std::string_view name) {
  const Attribute* attribute = find(attributes, name);
  const auto* value = attribute ? std::get_if<std::int64_t>(attribute) : nullptr;
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<double> find_number(const Attributes& attributes, std::string_view name) {
  const Attribute* attribute = find(attributes, name);
  if (const auto* value = attribute ? std::get_if<double>(attribute) : nullptr) return *value;
  if (const auto* value = attribute ? std::get_if<std::int64_t>(attribute) : nullptr) {
    return static_cast<double>(*value);
  }
  return std::nullopt;
}

std::optional<std::string> find_text(const Attributes& attributes, std::string_view name) {
  const Attribute* attribute = find(attributes, name);
  const auto* value = attribute ? std::get_if<std::string>(attribute) : nullptr;
  return value ? std::optional(*value) : std::nullopt;
}

}  // namespace cleave::checkpoint
