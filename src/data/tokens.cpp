// TokenArray, and the token files of nanoGPT and llm.c.
#include "cleave/data/tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

namespace cleave::data {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

TokenArray::TokenArray(std::int64_t size, std::int64_t vocab_size) {
  if (vocab_size <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1) {
    tokens_ = Narrow(static_cast<std::size_t>(size));
  } else {
    tokens_ = Wide(static_cast<std::size_t>(size));
  }
}

std::int64_t TokenArray::size() const {
  return std::visit([](const auto& tokens) { return static_cast<std::int64_t>(tokens.size()); }, tokens_);
}

void TokenArray::copy(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  CLEAVE_ASSERT(first >= 0 && count <= size() - first, "tokens [{}, {} + {}) of {}", first, first, count, size());
  std::visit([&](const auto& tokens) { std::copy_n(tokens.begin() + first, count, out.begin()); }, tokens_);
}

std::int32_t TokenArray::max() const {
  return std::visit(
      [](const auto& tokens) {
        const auto largest = std::max_element(tokens.begin(), tokens.end());
        return largest == tokens.end() ? -1 : static_cast<std::int32_t>(*largest);
      },
      tokens_);
}

std::vector<std::int32_t> TokenArray::to_vector() const {
  std::vector<std::int32_t> out(static_cast<std::size_t>(size()));
  copy(0, out);
  return out;
}

namespace {

// llm.c, dev/data/data_common.py: header of 256 int32, of which the first three are used.
constexpr std::int32_t kHeaderMagic = 20240520;
constexpr std::int32_t kHeaderVersion = 1;
constexpr std::int32_t kWideMagic = 20240801;  // its files of 32-bit tokens
constexpr std::int64_t kHeaderBytes = 256 * 4;

/// What is wrong with a token file, as an Issue without its place.
struct Fault {
  std::string message, hint;
};

/// Reads the file into `tokens`, or says what is wrong with it.
std::optional<Fault> read_tokens(const std::filesystem::path& path, std::vector<std::uint16_t>& tokens) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Fault{"no such file", ""};
  if (!std::filesystem::is_regular_file(status)) return Fault{"not a file", "give one file of tokens"};
  std::ifstream in(path, std::ios::binary);
  if (!in) return Fault{fmt::format("cannot be read: {}", std::strerror(errno)), ""};
  in.seekg(0, std::ios::end);
  const auto bytes = static_cast<std::int64_t>(in.tellg());
  in.seekg(0);
  if (bytes <= 0) return Fault{"holds no tokens", ""};

  std::int64_t begin = 0;
  std::array<std::int32_t, 3> header{};
  if (bytes >= static_cast<std::int64_t>(sizeof header)) {
    in.read(reinterpret_cast<char*>(header.data()), sizeof header);
    in.seekg(0);
  }
  if (header[0] == kWideMagic) return Fault{"holds 32-bit tokens", "write it as uint16"};
  if (header[0] == kHeaderMagic) {
    if (header[1] != kHeaderVersion) {
      return Fault{fmt::format("llm.c token file of version {}", header[1]), "version 1 is read"};
    }
    const std::int64_t declared = header[2];
    if (bytes < kHeaderBytes || bytes - kHeaderBytes != 2 * declared) {
      return Fault{fmt::format("its header declares {} tokens, which with the header are {} bytes, but it has {} bytes",
                               declared, kHeaderBytes + 2 * declared, bytes),
                   "cut short or damaged?"};
    }
    if (declared == 0) return Fault{"holds no tokens", ""};
    begin = kHeaderBytes;
  } else if (bytes % 2 != 0) {
    return Fault{fmt::format("its length, {} bytes, is not a whole number of uint16", bytes), "cut short or damaged?"};
  }

  tokens.resize(static_cast<std::size_t>((bytes - begin) / 2));
  in.seekg(begin);
  in.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(bytes - begin));
  if (!in) {
    tokens.clear();
    return Fault{"cannot be read to its end", ""};
  }
  return std::nullopt;
}

}  // namespace

TokenArray load_tokens(const SourceEntry& entry, std::string_view key, std::vector<Issue>& issues) {
  std::vector<std::uint16_t> tokens;
  if (auto fault = read_tokens(entry.resolved, tokens)) {
    issues.push_back(Issue{.file = entry.file,
                           .line = entry.line,
                           .key = std::string(key),
                           .message = fmt::format("{}: {}", entry.as_written, fault->message),
                           .hint = std::move(fault->hint)});
  }
  return TokenArray(std::move(tokens));
}

}  // namespace cleave::data
