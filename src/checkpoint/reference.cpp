// Reading reference files: every part present, of the sizes that the other parts imply.
#include "cleave/checkpoint/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cleave/base/error.hpp"
#include "hdf5.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kReferenceHint = "tests/golden/README.md has the layout of reference files";

void expect_shape(const hdf5::ReadFile& file, const std::string& where, const Shape& found, const Shape& expected) {
  if (found != expected) {
    file.refuse(where, fmt::format("is {}, not {}", to_string(found), to_string(expected)), kReferenceHint);
  }
}

std::vector<double> read_doubles(const hdf5::ReadFile& file, const std::string& where, const Shape& expected) {
  const auto dataset = file.open_dataset(where);
  expect_shape(file, where, dataset.shape, expected);
  std::vector<double> values(static_cast<std::size_t>(dataset.count));
  file.read(dataset, where, values);
  return values;
}

std::vector<std::int32_t> read_ids(const hdf5::ReadFile& file, const std::string& where, const Shape& expected,
                                   std::int64_t vocab_size) {
  const auto dataset = file.open_dataset(where);
  expect_shape(file, where, dataset.shape, expected);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(dataset.count));
  file.read(dataset, where, wide);
  for (const std::int64_t id : wide) {
    if (id < 0 || id >= vocab_size) {
      file.refuse(where, fmt::format("token id {} is not in [0, {})", id, vocab_size), kReferenceHint);
    }
  }
  std::vector<std::int32_t> ids(wide.size());
  std::ranges::transform(wide, ids.begin(), [](std::int64_t id) { return static_cast<std::int32_t>(id); });
  return ids;
}

/// The batches; the attributes of the root, where they are there, must agree.
ReferenceBatches read_batches_of(const hdf5::ReadFile& file, const Attributes& root) {
  const std::string tokens = "/batches/tokens", targets = "/batches/targets";
  const Shape shape = file.open_dataset(tokens).shape;
  if (shape.size() != 3 || std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 1; })) {
    file.refuse(tokens, fmt::format("is {}, not [steps, batch, sequence]", to_string(shape)), kReferenceHint);
  }
  const char* const names[] = {"steps", "batch", "seq_len"};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto stated = find_integer(root, names[i]);
    if (stated && *stated != shape[i]) {
      file.refuse(tokens, fmt::format("is {}, but the attribute {} is {}", to_string(shape), names[i], *stated),
                  kReferenceHint);
    }
  }
  constexpr std::int64_t kMostIds = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  const std::int64_t vocab_size = std::min(find_integer(root, "vocab_size").value_or(kMostIds), kMostIds);
  return ReferenceBatches{shape[0], shape[1], shape[2], read_ids(file, tokens, shape, vocab_size),
                          read_ids(file, targets, shape, vocab_size)};
}

std::vector<Tensor> read_init(const hdf5::ReadFile& file) {
  if (!file.has_group("/init")) file.refuse("/init", "no such group", kReferenceHint);
  std::vector<Tensor> tensors;
  for (const std::string& name : file.names_in("/init")) {
    const std::string where = "/init/" + name;
    const auto dataset = file.open_dataset(where);
    tensors.push_back({name, dataset.shape, std::vector<float>(static_cast<std::size_t>(dataset.count))});
    file.read(dataset, where, tensors.back().data);
  }
  if (tensors.empty()) file.refuse("/init", "holds no tensors", kReferenceHint);
  return tensors;
}

/// Expected tensors, one for each of /init.
std::vector<ReferenceTensor> read_expected(const hdf5::ReadFile& file, const std::string& group,
                                           const std::vector<Tensor>& init) {
  std::vector<ReferenceTensor> tensors;
  for (const Tensor& parameter : init) {
    const std::string where = group + "/" + parameter.name;
    ReferenceTensor tensor{parameter.name, parameter.shape, read_doubles(file, where, parameter.shape), std::nullopt,
                           file.attributes_of(where)};
    const auto begin = find_integer(tensor.attributes, "noise_begin"),
               end = find_integer(tensor.attributes, "noise_end");
    if (begin || end) {
      const auto count = static_cast<std::int64_t>(tensor.values.size());
      if (!begin || !end || *begin < 0 || *end < *begin || *end > count) {
        file.refuse(where, fmt::format("noise_begin and noise_end are no range within {} elements", count),
                    kReferenceHint);
      }
      tensor.noise = NoiseRange{*begin, *end};
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

ReferenceBatches read_batches(const fs::path& path) {
  const hdf5::ReadFile file(path);
  return read_batches_of(file, file.attributes_of("/"));
}

Reference read_reference(const fs::path& path) {
  const hdf5::ReadFile file(path);
  Reference reference;
  reference.attributes = file.attributes_of("/");
  reference.init = read_init(file);
  reference.batches = read_batches_of(file, reference.attributes);
  const Shape per_step = {reference.batches.steps};
  reference.loss = read_doubles(file, "/expected/loss", per_step);
  reference.grad_norm = read_doubles(file, "/expected/grad_norm", per_step);
  reference.clip_coef = read_doubles(file, "/expected/clip_coef", per_step);
  reference.lr = read_doubles(file, "/expected/lr", per_step);

  const std::string logits = "/expected/logits_step0";
  const Shape logits_shape = file.open_dataset(logits).shape;
  reference.vocab_size =
      find_integer(reference.attributes, "vocab_size").value_or(logits_shape.size() == 2 ? logits_shape[1] : 0);
  reference.logits_step0 = read_doubles(file, logits, {reference.batches.seq_len, reference.vocab_size});

  reference.grads_step0 = read_expected(file, "/expected/grads_step0", reference.init);
  reference.params_final = read_expected(file, "/expected/params_final", reference.init);
  reference.loss_after = read_doubles(file, "/expected/loss_after", {}).front();
  if (file.has_dataset("/expected/loss_fp32")) {
    reference.loss_fp32 = read_doubles(file, "/expected/loss_fp32", per_step);
  }
  if (file.has_dataset("/expected/grad_norm_fp32")) {
    reference.grad_norm_fp32 = read_doubles(file, "/expected/grad_norm_fp32", per_step);
  }
  if (file.has_dataset("/expected/loss_after_fp32")) {
    reference.loss_after_fp32 = read_doubles(file, "/expected/loss_after_fp32", {}).front();
  }
  return reference;
}

}  // namespace cleave::checkpoint
