// Every field has a line; each must be there once, in order, so a text has one form.
#include "cleave/model/step_text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <type_traits>

#include "cleave/model/family.hpp"

namespace cleave::model {

namespace {

constexpr std::int64_t kMostSequences = std::int64_t{1} << 24;
constexpr std::size_t kMostPatterns = 1024;

// Calls visit(name, field) for each field.
template <class Step, class Visit>
void for_fields(Step& step, Visit visit) {
  auto& c = step.config;
  visit("family", c.family);
  visit("vocab_size", c.vocab_size);
  visit("n_layer", c.n_layer);
  visit("n_head", c.n_head);
  visit("n_kv_head", c.n_kv_head);
  visit("d_model", c.d_model);
  visit("d_ff", c.d_ff);
  visit("seq_len", c.seq_len);
  visit("max_pos", c.max_pos);
  visit("tie_embeddings", c.tie_embeddings);
  visit("norm_eps", c.norm_eps);
  visit("rope_theta", c.rope_theta);
  visit("batch", step.batch);
  visit("wire", step.wire);
  visit("boundary", step.boundary);
}

// The value of the next line, if it has this name.
std::optional<std::string_view> take_line(std::string_view& text, std::string_view name) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || !text.starts_with(name) || text.size() <= name.size() ||
      text[name.size()] != ' ' || end <= name.size())
    return std::nullopt;
  const std::string_view value = text.substr(name.size() + 1, end - name.size() - 1);
  text.remove_prefix(end + 1);
  return value;
}

bool read(std::string_view value, std::string& field) {
  field = value;
  return true;
}
bool read(std::string_view value, bool& field) {
  field = value == "true";
  return field || value == "false";
}
bool read(std::string_view value, DType& field) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (value != name_of(type)) continue;
    field = type;
    return true;
  }
  return false;
}
// Of boundaries: "wire", or a type that no operand has.
bool read(std::string_view value, std::optional<DType>& field) {
  field = value == name_of(DType::mxint8) ? std::optional(DType::mxint8) : std::nullopt;
  return field || value == "wire";
}
template <class Number>
bool read(std::string_view value, Number& field) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), field);
  return error == std::errc{} && end == value.data() + value.size();
}

}  // namespace

std::string to_text(const StepText& step) {
  std::string text;
  const auto put = [&](std::string_view name, const auto& value) { text += fmt::format("{} {}\n", name, value); };
  for_fields(step, [&](std::string_view name, const auto& field) {
    if constexpr (std::is_same_v<decltype(field), const DType&>) {
      put(name, name_of(field));
    } else if constexpr (std::is_same_v<decltype(field), const std::optional<DType>&>) {
      put(name, field ? name_of(*field) : "wire");
    } else {
      put(name, field);
    }
  });
  for (const std::string& pattern : step.freeze) text += fmt::format("freeze {}\n", pattern);
  return text;
}

std::optional<StepText> parse_step_text(std::string_view text) {
  StepText step;
  bool good = true;
  for_fields(step, [&](std::string_view name, auto& field) {
    const std::optional<std::string_view> value = take_line(text, name);
    good = good && value && read(*value, field);
  });
  while (good && !text.empty()) {
    const std::optional<std::string_view> pattern = take_line(text, "freeze");
    good = pattern && step.freeze.size() < kMostPatterns;
    if (good) step.freeze.emplace_back(*pattern);
  }
  if (!good || step.batch < 1 || step.batch > kMostSequences || !find_faults(step.config).empty()) return std::nullopt;
  return step;
}

StepOptions options_of_stages(const StepText& step, bool clip) {
  return {.kind = StepKind::train,
          .batch = step.batch,
          .clip = clip,
          .freeze = step.freeze,
          .loss_rows = step.batch * step.config.seq_len,
          .row_groups = 1,
          .wire = step.wire,
          .boundary = step.boundary};
}

StepGraph graph_of_stages(const StepText& step) { return build_step(step.config, options_of_stages(step, true)); }

}  // namespace cleave::model
