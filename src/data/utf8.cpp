// Decoding by the table of RFC 3629: the lead byte gives the length, the value must need that length.
#include "utf8.hpp"

namespace cleave::data {

std::optional<CodePoint> decode_utf8(std::string_view bytes, std::size_t at) {
  const auto lead = static_cast<unsigned char>(bytes[at]);
  if (lead < 0x80) return CodePoint{lead, 1};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() - at < static_cast<std::size_t>(length)) return std::nullopt;
  auto value = static_cast<char32_t>(lead & (0x7F >> length));
  for (int i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
    if ((next & 0xC0) != 0x80) return std::nullopt;
    value = (value << 6) | (next & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[length] || !is_scalar_value(value)) return std::nullopt;
  return CodePoint{value, length};
}

void append_utf8(char32_t value, std::string& out) {
  if (value < 0x80) {
    out += static_cast<char>(value);
    return;
  }
  const int following = value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[following] | (value >> (6 * following)));
  for (int i = following - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((value >> (6 * i)) & 0x3F));
}

}  // namespace cleave::data
