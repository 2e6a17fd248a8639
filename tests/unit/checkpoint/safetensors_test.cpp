// Safetensors: round trips, another writer's files, shards, and hostile headers.
#include "cleave/checkpoint/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>

#include "cleave/base/half.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "temp_folder.hpp"

namespace cleave::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A file with this header and so many bytes of data.
std::string file_of(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + std::string(header) + std::string(data_bytes, '\0');
}

class Safetensors : public TempFolder {
 protected:
  std::string fault(std::string_view bytes) {
    store(path_, bytes);
    return input_error([&] { (void)read_safetensors(path_); });
  }
  fs::path path_ = folder_ / "model.safetensors";
};

TEST_F(Safetensors, RoundTrip) {
  const std::vector<Tensor> tensors = {random_tensor("a.weight", {3, 5}, 1), random_tensor("b", {}, 2),
                                       random_tensor("empty", {0, 4}, 3), random_tensor("z", {100000}, 4)};
  write_safetensors(path_, views_of(tensors), DType::f32, {{"format", "pt"}, {"naïve", "\"quoted\"\n"}});
  EXPECT_EQ(read_safetensors(path_), tensors);
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata().at("naïve"), "\"quoted\"\n");
  EXPECT_EQ(file.tensors()[0].dtype, "F32");
  std::uint64_t header = 0;
  std::memcpy(&header, load(path_).data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST_F(Safetensors, Bf16IsRoundedToTheNearest) {
  const std::vector<Tensor> tensors = {random_tensor("w", {300, 300}, 1)};
  write_safetensors(path_, views_of(tensors), DType::bf16);
  const std::vector<Tensor> read = read_safetensors(path_);
  for (std::size_t i = 0; i < 90000; ++i) { EXPECT_EQ(read[0].data[i], bf16_to_f32(f32_to_bf16(tensors[0].data[i]))); }
  EXPECT_LT(fs::file_size(path_), 180200u);
  write_safetensors(folder_ / "again", views_of(read), DType::bf16);
  EXPECT_EQ(load(folder_ / "again"), load(path_));
}

TEST_F(Safetensors, ThroughACheckpointAndBackNothingIsLost) {
  const Snapshot snapshot = sample_snapshot();
  write_safetensors(path_, views_of(snapshot.model), DType::f32);
  Snapshot imported;
  imported.model = read_safetensors(path_);
  write_snapshot(folder_ / "c.h5", view_of(imported));
  EXPECT_EQ(read_snapshot(folder_ / "c.h5").model, snapshot.model);
  write_safetensors(folder_ / "again", views_of(read_snapshot(folder_ / "c.h5").model), DType::f32);
  EXPECT_EQ(load(folder_ / "again"), load(path_));
}

TEST_F(Safetensors, AnotherWritersFile) {
  if (!python_has("numpy")) GTEST_SKIP() << "needs /usr/bin/python3 with numpy";
  // Header of odd length, so data is not aligned; tensors in another order than their names; types that we skip.
  ASSERT_TRUE(run_python(folder_, R"(
import json, struct, numpy as np
f32 = np.arange(6, dtype='<f4').reshape(2, 3) / 3
f16 = (np.arange(-4, 4) / 8).astype('<f2')
bf16 = (f32.view('<u4') >> 16).astype('<u2')
mask = np.ones((2, 2), bool)
header, data = {'__metadata__': {'format': 'pt'}}, b''
for name, kind, a in [('z', 'F32', f32), ('m', 'BOOL', mask), ('h', 'F16', f16), ('b', 'BF16', bf16)]:
    header[name] = {'data_offsets': [len(data), len(data) + a.nbytes], 'dtype': kind, 'shape': list(a.shape)}
    data += a.tobytes()
text = json.dumps(header).encode()
text += b' ' * (1 - len(text) % 2)
open('model.safetensors', 'wb').write(struct.pack('<Q', len(text)) + text + data)
)"));
  const SafetensorsFile file(folder_);
  ASSERT_EQ(file.tensors().size(), 4u);
  std::vector<float> six(6), eight(8), four(4);
  file.read("z", six);
  EXPECT_THAT(six, ElementsAre(0, 1 / 3.0f, 2 / 3.0f, 1, 4 / 3.0f, 5 / 3.0f));
  file.read("h", eight);
  EXPECT_THAT(eight, ElementsAre(-0.5f, -0.375f, -0.25f, -0.125f, 0, 0.125f, 0.25f, 0.375f));
  file.read("b", six);
  EXPECT_EQ(six[3], 1.0f);
  EXPECT_NEAR(six[1], 1 / 3.0f, 2e-3f);
  EXPECT_THAT(input_error([&] { file.read("m", four); }), HasSubstr("tensor m: is of type BOOL"));
  EXPECT_THAT(input_error([&] { file.read("none", four); }), HasSubstr("tensor none is missing"));
  EXPECT_THROW(file.read("z", four), Bug);
}

TEST_F(Safetensors, AnotherReaderReadsOurs) {
  if (!python_has("numpy")) GTEST_SKIP() << "needs /usr/bin/python3 with numpy";
  const std::vector<Tensor> tensors = {{"w", {2, 2}, {1, 2, 3, 4}}, {"v", {1}, {0.5f}}};
  write_safetensors(path_, views_of(tensors), DType::f32, {{"family", "gpt2"}});
  EXPECT_TRUE(run_python(folder_, R"(
import json, struct, numpy as np
bytes = open('model.safetensors', 'rb').read()
n, = struct.unpack('<Q', bytes[:8])
header, data = json.loads(bytes[8:8 + n]), bytes[8 + n:]
assert header['__metadata__'] == {'family': 'gpt2'}
assert header['w'] == {'dtype': 'F32', 'shape': [2, 2], 'data_offsets': [0, 16]}
assert header['v'] == {'dtype': 'F32', 'shape': [1], 'data_offsets': [16, 20]}
assert list(np.frombuffer(data, '<f4')) == [1, 2, 3, 4, 0.5]
)"));
}

TEST_F(Safetensors, Shards) {
  const std::vector<Tensor> tensors = {random_tensor("a", {4}, 1), random_tensor("b", {2, 2}, 2),
                                       random_tensor("c", {3}, 3)};
  const auto views = views_of(tensors);
  write_safetensors(folder_ / "model-00001-of-00002.safetensors", std::span(views).first(2), DType::f32,
                    {{"one", "1"}});
  write_safetensors(folder_ / "model-00002-of-00002.safetensors", std::span(views).last(1), DType::f32, {{"two", "2"}});
  const fs::path index = folder_ / "model.safetensors.index.json";
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  const auto write_index = [&](std::string_view c_shard) {
    store(index,
          fmt::format(R"({{"metadata": {{"total_size": 44}}, "weight_map": {{"a": "{0}", "b": "{0}", "c": "{1}"}}}})",
                      first, c_shard));
  };
  write_index(second);
  EXPECT_EQ(read_safetensors(index), tensors);
  EXPECT_EQ(read_safetensors(folder_), tensors);
  EXPECT_EQ(SafetensorsFile(folder_).metadata().size(), 2u);

  const auto refused = [&] { return input_error([&] { (void)read_safetensors(index); }); };
  write_index(first);
  EXPECT_THAT(refused(), AllOf(HasSubstr(first), HasSubstr("tensor c is missing"), HasSubstr("index.json says")));
  write_index("none.safetensors");
  EXPECT_THAT(refused(), HasSubstr("none.safetensors: cannot be read"));
  write_index("../" + folder_.filename().string() + "/" + second);
  EXPECT_THAT(refused(), HasSubstr("no plain file name"));
  for (const char* bad : {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {}}",
                          "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\""}) {
    store(index, bad);
    EXPECT_THROW((void)read_safetensors(index), InputError) << bad;
  }
}

TEST_F(Safetensors, NoSuchModel) {
  EXPECT_THAT(input_error([&] { (void)read_safetensors(path_); }), HasSubstr("No such file"));
  EXPECT_THAT(input_error([&] { (void)read_safetensors(folder_); }), HasSubstr("holds neither"));
  EXPECT_THAT(input_error([&] { (void)read_safetensors("/dev/null"); }), HasSubstr("not a file"));
  const fs::path pipe = folder_ / "pipe.safetensors";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(input_error([&] { (void)read_safetensors(pipe); }), HasSubstr("not a file"));  // nobody writes to it
}

TEST_F(Safetensors, EmptyModelIsAModel) {
  store(path_, file_of("{}", 0));
  EXPECT_THAT(read_safetensors(path_), IsEmpty());
}

TEST_F(Safetensors, HeaderLengthBeyondTheFile) {
  const std::string good = file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  store(path_, good);
  EXPECT_EQ(read_safetensors(path_).size(), 1u);
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{good.size()}, std::uint64_t{100'000'001}, ~std::uint64_t{0},
        ~std::uint64_t{7}, std::uint64_t{1} << 63}) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, 8);
    EXPECT_THAT(fault(bad), HasSubstr("a header of")) << length;
  }
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_NE(fault(good.substr(0, length)), "") << length;
  EXPECT_THAT(fault(good + "x"), HasSubstr("5 bytes of data, of which tensors take 4"));
}

TEST_F(Safetensors, HostileHeaders) {
  const auto one = [&](std::string_view entry, std::size_t data = 4) {
    return fault(file_of(fmt::format("{{\"a\":{}}}", entry), data));
  };
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
              HasSubstr("takes 8 bytes, but its data_offsets span 4"));
  EXPECT_THAT(one(R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})"), HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})", 8), HasSubstr("is of type F64"));
  EXPECT_THAT(one(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"), HasSubstr("dtype is no string"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,4]})"), HasSubstr("impossible"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
              HasSubstr("impossible"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]})", 0),
              HasSubstr("impossible"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2147483648,2147483648,2],"data_offsets":[0,0]})", 0),
              HasSubstr("impossible"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), HasSubstr("no list of whole numbers"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), HasSubstr("no list of whole numbers"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})"), HasSubstr("no list of whole numbers"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), HasSubstr("data_offsets"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), HasSubstr("data_offsets"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616]})"),
              HasSubstr("data_offsets"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]})"),
              HasSubstr("begins at byte"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[100],"data_offsets":[0,400]})"),
              HasSubstr("ends at byte 400 of the data, which has 4"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1]})"), HasSubstr("needs dtype, shape and data_offsets"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})"), HasSubstr("nothing else"));
  EXPECT_THAT(one("3"), HasSubstr("needs dtype"));
  EXPECT_THAT(one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), HasSubstr("\"dtype\" twice"));
}

TEST_F(Safetensors, RangesMustLieSideBySide) {
  const auto two = [&](int a0, int a1, int b0, int b1, std::size_t data) {
    return fault(file_of(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                                     R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                                     a1 - a0, a0, a1, b1 - b0, b0, b1),
                         data));
  };
  EXPECT_THAT(two(0, 4, 3, 7, 7), AllOf(HasSubstr("tensor b: begins at byte 3"), HasSubstr("before the end")));
  EXPECT_THAT(two(0, 4, 5, 8, 8), AllOf(HasSubstr("tensor b: begins at byte 5"), HasSubstr("after the end")));
  EXPECT_THAT(two(0, 4, 0, 4, 4), HasSubstr("tensor b: begins at byte 0"));
  EXPECT_THAT(two(1, 4, 4, 8, 8), HasSubstr("tensor a: begins at byte 1"));
  EXPECT_THAT(two(0, 4, 4, 8, 9), HasSubstr("9 bytes of data, of which tensors take 8"));
}

TEST_F(Safetensors, HeadersThatAreNoHeaders) {
  for (
      const std::string& header :
      {std::string("[]"), std::string("  {}"), std::string("{\"a\""), std::string("{\"a\":{}}"), std::string("{}x"),
       std::string("{\"__metadata__\":[]}"), std::string("{\"__metadata__\":{\"a\":1}}"), std::string("{\"a\xff\":1}"),
       "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
       std::string(
           R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})")}) {
    EXPECT_THAT(fault(file_of(header, 4)), HasSubstr("model.safetensors: ")) << header.substr(0, 50);
  }
}

TEST_F(Safetensors, FlippedHeadersNeverEscapeTheirBounds) {
  // Whatever a flip makes of the header, reading ends in an InputError or in tensors that lie within the file.
  const std::string good = file_of(R"({"ab":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                   R"("c":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
                                   32);
  int refused = 0, taken = 0;
  for (std::size_t at = 0; at < good.size() - 32; ++at) {
    for (const int bit : {0, 2, 5}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      store(path_, bad);
      try {
        (void)read_safetensors(path_);
        ++taken;
      } catch (const InputError&) { ++refused; }
    }
  }
  EXPECT_GT(refused, 10 * taken);  // names may change unnoticed, structure may not
}

}  // namespace
}  // namespace cleave::checkpoint
