// Payloads of hello and welcome: fields one after another, texts and lists preceded by their 32-bit length.
#include "cleave/comm/handshake.hpp"

#include <cstring>
#include <type_traits>

#include "cleave/base/one_line.hpp"
#include "layout.hpp"

namespace cleave::comm {

namespace {

constexpr std::size_t kMaxName = 256;          // bytes of a host's name, version or kernel choice
constexpr std::int64_t kMaxDevices = 1 << 20;  // hosted by one rank

class Writer {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value, std::size_t most = kMaxName) {
    value = value.substr(0, most);
    put(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

// Reads what Writer wrote; after the first fault everything reads as zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value{};
    if (bytes_.size() < sizeof value) {
      fail();
    } else {
      std::memcpy(&value, bytes_.data(), sizeof value);
      bytes_ = bytes_.subspan(sizeof value);
    }
    return value;
  }
  std::string text(std::size_t most = kMaxName) {
    const auto size = get<std::uint32_t>();
    if (size > most || size > bytes_.size()) {
      fail();
      return {};
    }
    std::string value(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return value;
  }
  double number(double low, double high) {
    const auto value = get<double>();
    if (!(value >= low && value <= high)) fail();
    return value;
  }
  template <class Enum>
  Enum choice(Enum last) {
    const auto value = get<std::underlying_type_t<Enum>>();
    if (value > static_cast<std::underlying_type_t<Enum>>(last)) fail();
    return static_cast<Enum>(value);
  }
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  [[nodiscard]] bool ok() const { return ok_; }
  void fail() {
    ok_ = false;
    bytes_ = {};
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

// Of a hosted device: its id and its memory.
constexpr std::size_t kDeviceBytes = 8 + 8;

template <class T>
Decoded<T> whole(Reader& reader, T value) {
  if (!reader.ok() || reader.left() != 0) return Fault::payload;
  return value;
}

std::optional<Fault> expect(const Frame& frame, Kind kind) {
  const auto header = decode(frame);
  if (!header) return header.fault();
  if (header->kind != kind) return Fault::kind;
  return std::nullopt;
}

Reader payload_of(const Frame& frame) { return Reader(frame.bytes().subspan(kHeaderBytes)); }

}  // namespace

Frame encode(const Hello& hello) {
  Writer writer;
  writer.put(hello.pid);
  writer.text(hello.host);
  writer.text(hello.version);
  return encode_payload(Kind::hello, writer.bytes());
}

Decoded<Hello> decode_hello(const Frame& frame) {
  if (const auto fault = expect(frame, Kind::hello)) return *fault;
  Reader reader = payload_of(frame);
  Hello hello;
  hello.pid = reader.get<std::int64_t>();
  if (hello.pid < 0) reader.fail();
  hello.host = one_line(reader.text());
  hello.version = one_line(reader.text());
  return whole(reader, std::move(hello));
}

Frame encode(const Welcome& welcome) {
  Writer writer;
  writer.put(welcome.wire);
  writer.text(welcome.gemm_kernels);
  writer.put(welcome.heartbeat.value());
  writer.put(welcome.patience.value());
  writer.put(static_cast<std::uint32_t>(welcome.devices.size()));
  for (const HostedDevice& device : welcome.devices) {
    writer.put(device.id.value);
    writer.put(device.memory.value());
  }
  if (!welcome.step.empty()) writer.text(welcome.step, kMaxStepText);
  return encode_payload(Kind::welcome, writer.bytes());
}

Decoded<Welcome> decode_welcome(const Frame& frame) {
  if (const auto fault = expect(frame, Kind::welcome)) return *fault;
  Reader reader = payload_of(frame);
  Welcome welcome;
  welcome.wire = reader.choice(DType::f16);
  welcome.gemm_kernels = reader.text();
  welcome.heartbeat = Seconds(reader.number(1e-3, kMaxSeconds));
  welcome.patience = Seconds(reader.number(1e-3, kMaxSeconds));
  const std::int64_t count = reader.get<std::uint32_t>();
  if (count > kMaxDevices || static_cast<std::size_t>(count) > reader.left() / kDeviceBytes) reader.fail();
  for (std::int64_t i = 0; i < count && reader.ok(); ++i) {
    HostedDevice device;
    device.id = DeviceId(reader.get<std::int64_t>());
    device.memory = Bytes(reader.get<std::int64_t>());
    if (!device.id.valid() || device.memory.value() < 0) reader.fail();
    welcome.devices.push_back(std::move(device));
  }
  if (reader.left() > 0) {
    welcome.step = reader.text(kMaxStepText);
    if (welcome.step.empty()) reader.fail();
  }
  return whole(reader, std::move(welcome));
}

}  // namespace cleave::comm
