// Rendering of issues and construction of the error types.
#include "cleave/base/error.hpp"

#include <fmt/format.h>

#include <string_view>

namespace cleave {

namespace {

std::string join(const std::vector<Issue>& issues) {
  std::string text;
  for (const Issue& issue : issues) {
    if (!text.empty()) text += '\n';
    text += to_string(issue);
  }
  return text;
}

// Within the source tree, wherever that was on the machine that built the program.
std::string_view within_sources(std::string_view file) {
  for (const std::string_view top : {"/src/", "/include/"}) {
    if (const std::size_t at = file.rfind(top); at != std::string_view::npos) return file.substr(at + 1);
  }
  return file;
}

}  // namespace

std::string to_string(const Issue& issue) {
  std::string text;
  if (!issue.file.empty()) {
    text += issue.file;
    if (issue.line > 0) text += fmt::format(":{}", issue.line);
    text += ": ";
  }
  if (!issue.key.empty()) text += issue.key + ": ";
  text += issue.message;
  if (!issue.hint.empty()) text += " (" + issue.hint + ")";
  return text;
}

InputError::InputError(std::vector<Issue> issues) : std::runtime_error(join(issues)), issues_(std::move(issues)) {}

InputError::InputError(std::string message, std::string hint)
    : InputError(std::vector<Issue>{
          Issue{.file = {}, .line = 0, .key = {}, .message = std::move(message), .hint = std::move(hint)}}) {}

EnvironmentError::EnvironmentError(std::string operation, std::string object, std::string detail,
                                   std::source_location where)
    : std::runtime_error(fmt::format("{} {}: {} [{}:{}]", operation, object, detail, within_sources(where.file_name()),
                                     where.line())) {}

Bug::Bug(const char* expression, std::string detail, std::source_location where)
    : std::logic_error(fmt::format("assertion failed: {} [{}:{}]: {}", expression, within_sources(where.file_name()),
                                   where.line(), detail)) {}

}  // namespace cleave
