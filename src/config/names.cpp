// Edit distance and rendering of names in messages.
#include "names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace cleave::config {

namespace {

constexpr std::size_t kLongestShown = 40;
constexpr std::size_t kLongestCompared = 64;  // longer names are no typing errors; bounds the work on hostile input

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<int> before(width), above(width), row(width);
  for (std::size_t j = 0; j < width; ++j) above[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < width; ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  if (word.size() > kLongestCompared) return {};
  const std::string wanted = lower(word);
  std::string best;
  int best_distance = 0;
  for (const std::string& name : names) {
    // Case and the choice between - and _ are free: they are how the same word is written elsewhere.
    std::string candidate = lower(name);
    std::string dashed = wanted;
    std::replace(dashed.begin(), dashed.end(), '-', '_');
    const int distance = std::min(edit_distance(wanted, candidate), edit_distance(dashed, candidate));
    if (best.empty() || distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  const auto allowed = static_cast<int>(std::max<std::size_t>(1, std::max(word.size(), best.size()) / 3));
  // A name of two letters is near to everything: there only a change of case counts.
  return !best.empty() && (best_distance == 0 || (best_distance <= allowed && word.size() > 2)) ? best : std::string();
}

std::string one_of(const std::vector<std::string>& names) { return "one of " + joined(names); }

std::string hint_for(std::string_view word, const std::vector<std::string>& names) {
  const std::string near = nearest(word, names);
  return near.empty() ? one_of(names) : fmt::format("did you mean {}?", near);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
  }
  const unsigned second = byte(at + 1);
  const bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                   (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string in_quotes(std::string_view text) {
  std::string shown = "'";
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool continues = (c & 0xC0U) == 0x80U;  // a UTF-8 character is never cut
    if (!continues && ++characters > kLongestShown) return shown + "...'";
    if (c == '\n') {
      shown += "\\n";
    } else if (c == '\t') {
      shown += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      shown += fmt::format("\\x{:02x}", c);
    } else {
      shown += static_cast<char>(c);
    }
  }
  return shown + "'";
}

std::string shown_key(std::string_view key) {
  const bool word = !key.empty() && key.size() <= kLongestCompared && std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  });
  return word ? std::string(key) : in_quotes(key);
}

std::string joined(const std::vector<std::string>& words, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? last : std::string_view(", ");
    text += words[i];
  }
  return text;
}

}  // namespace cleave::config
