// Opening, reading and writing safetensors files; the header's rules are in safetensors_header.cpp.
#include "cleave/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/half.hpp"
#include "mapped_file.hpp"
#include "safetensors_header.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors files are read and written as they lie");

/// Mapped shards, and where in them each tensor lies.
struct SafetensorsFile::Contents {
  struct Place {
    std::size_t shard = 0;
    SafetensorsEntry entry;
  };
  fs::path path;
  std::vector<MappedFile> shards;
  std::map<std::string, Place, std::less<>> places;
  std::vector<SafetensorsInfo> infos;
  std::map<std::string, std::string> metadata;

  void open_single() {
    shards.emplace_back(path);
    SafetensorsHeader header = parse_safetensors_header(path, shards.back().bytes());
    for (auto& [name, entry] : header.entries) places[name] = {0, std::move(entry)};
    metadata = std::move(header.metadata);
  }

  void open_sharded() {
    const MappedFile index(path);
    std::map<std::string, std::vector<std::string>> names_by_shard;
    for (const auto& [name, shard] : parse_safetensors_index(path, index.bytes())) {
      names_by_shard[shard].push_back(name);
    }
    for (const auto& [shard, names] : names_by_shard) {
      const fs::path shard_path = path.parent_path() / shard;
      shards.emplace_back(shard_path);
      SafetensorsHeader header = parse_safetensors_header(shard_path, shards.back().bytes());
      for (const std::string& name : names) {
        const auto found = header.entries.find(name);
        if (found == header.entries.end()) {
          refuse_file(shard_path, fmt::format("tensor {} is missing", name),
                      fmt::format("{} says that it is here", path.filename().string()));
        }
        places[name] = {shards.size() - 1, std::move(found->second)};
      }
      metadata.merge(header.metadata);
    }
  }
};

SafetensorsFile::SafetensorsFile(const fs::path& path) : contents_(std::make_unique<Contents>()) {
  contents_->path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    contents_->path = path / "model.safetensors";
    if (!fs::exists(contents_->path, error)) contents_->path = path / "model.safetensors.index.json";
    if (!fs::exists(contents_->path, error)) {
      refuse_file(path, "holds neither model.safetensors nor model.safetensors.index.json");
    }
  }
  if (contents_->path.extension() == ".json") {
    contents_->open_sharded();
  } else {
    contents_->open_single();
  }
  for (const auto& [name, place] : contents_->places) contents_->infos.push_back(place.entry.info);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::vector<SafetensorsInfo>& SafetensorsFile::tensors() const { return contents_->infos; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return contents_->metadata; }

void SafetensorsFile::read(std::string_view name, std::span<float> out) const {
  const auto found = contents_->places.find(name);
  if (found == contents_->places.end()) refuse_file(contents_->path, fmt::format("tensor {} is missing", name));
  const SafetensorsEntry& entry = found->second.entry;
  const auto bytes = contents_->shards[found->second.shard].bytes().subspan(entry.begin, entry.size);
  const std::string& type = entry.info.dtype;
  if (type != "F32" && type != "F16" && type != "BF16") {
    refuse_file(contents_->path, fmt::format("tensor {}: is of type {}", name, type), "F32, F16 and BF16 are read");
  }
  CLEAVE_ASSERT(element_count(entry.info.shape) == static_cast<std::int64_t>(out.size()), "tensor {} {} into {} floats",
                name, to_string(entry.info.shape), out.size());
  if (type == "F32") {
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  // Data need not be aligned: the header may have any length.
  const auto convert = [&](auto to_f32) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, bytes.data() + 2 * i, sizeof half);
      out[i] = to_f32(half);
    }
  };
  if (type == "F16") {
    convert(f16_to_f32);
  } else {
    convert(bf16_to_f32);
  }
}

std::vector<Tensor> read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  std::vector<Tensor> tensors;
  tensors.reserve(file.tensors().size());
  for (const SafetensorsInfo& info : file.tensors()) {
    const auto count = static_cast<std::size_t>(*element_count(info.shape));
    tensors.push_back({info.name, info.shape, std::vector<float>(count)});
    file.read(info.name, tensors.back().data);
  }
  return tensors;
}

namespace {

/// The header with its length in front, padded with spaces so that the data is aligned to 8 bytes.
std::string make_header(std::span<const TensorView> tensors, DType type,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const auto count = static_cast<std::int64_t>(tensor.data.size());
    CLEAVE_ASSERT(element_count(tensor.shape) == count, "tensor {} {} of {} elements", tensor.name,
                  to_string(tensor.shape), count);
    CLEAVE_ASSERT(!json.contains(tensor.name), "tensor {} twice", tensor.name);
    const std::int64_t end = offset + count * size_of(type);
    json[tensor.name] = {
        {"dtype", type == DType::f32 ? "F32" : "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

void write_bf16(std::ofstream& out, std::span<const float> data) {
  constexpr std::size_t kBlock = 1 << 16;
  std::vector<std::uint16_t> block(std::min(kBlock, data.size()));
  for (std::size_t begin = 0; begin < data.size(); begin += kBlock) {
    const auto part = data.subspan(begin, std::min(kBlock, data.size() - begin));
    std::ranges::transform(part, block.begin(), f32_to_bf16);
    out.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(2 * part.size()));
  }
}

}  // namespace

void write_safetensors(const fs::path& path, std::span<const TensorView> tensors, DType type,
                       const std::map<std::string, std::string>& metadata) {
  CLEAVE_ASSERT(type == DType::f32 || type == DType::bf16, "safetensors of type {}", name_of(type));
  const std::string header = make_header(tensors, type, metadata);
  replace_file(path, [&](const fs::path& temporary) {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const TensorView& tensor : tensors) {
      if (type == DType::bf16) {
        write_bf16(out, tensor.data);
      } else {
        out.write(reinterpret_cast<const char*>(tensor.data.data()),
                  static_cast<std::streamsize>(tensor.data.size_bytes()));
      }
      if (!out) break;
    }
    out.flush();
    if (!out) throw EnvironmentError("write", temporary.string(), std::strerror(errno));
  });
}

}  // namespace cleave::checkpoint
