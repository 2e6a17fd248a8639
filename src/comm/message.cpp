// The codec: bytes of the header, views of the payload, checksum. docs/wire_format.md is its specification.
#include "cleave/comm/message.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#ifdef CLEAVE_XXHASH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>

#include "cleave/base/error.hpp"
#include "cleave/base/one_line.hpp"
#include "cleave/base/processor.hpp"
#include "layout.hpp"

namespace cleave::comm {

namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little endian, and frames are read in place");

// Offsets in the header, as the table of docs/wire_format.md has them.
enum : std::size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtKind = 6,
  kAtFault = 7,
  kAtPayload = 8,
  kAtPanelOrder = 12,
  kAtStorage = 13,
  kAtHeaderSum = 14,
  kAtColumns = 15,
  kAtChecksum = 16,
  kAtTasklet = 24,
  kAtDevice = 32,
  kAtOp = 40,
  kAtWork = 44,
  kAtWire = 45,
  kAtOutput = 46,
  kAtReason = 47,
  kAtM = 48,
  kAtN = 56,
  kAtK = 64,
  kAtBlocks = 72,
  kAtFirstBlock = 76,
  kAtComputed = 80,
  kAtCompute = 88,
  kAtPartFirst = 96,
  kAtPartCount = 100,
  kAtBroughtBy = 104,
  kAtPartOf = 112,
  kAtDigest = 113,
  kAtLossBits = 114,
  kAtUnused = 115,
  kAtSeq = 116,
  kAtSequence = 120,
  kAtPanels = 124,
};

template <class T>
void put(std::byte* header, std::size_t at, T value) {
  std::memcpy(header + at, &value, sizeof value);
}

template <class T>
T get(const std::byte* header, std::size_t at) {
  T value;
  std::memcpy(&value, header + at, sizeof value);
  return value;
}

// Bits of the storage field.
constexpr std::uint8_t kAByColumns = 1, kBByColumns = 2, kInPlace = 4;

bool is_attention(Work work) { return work == Work::attention_forward || work == Work::attention_backward; }

// A task of a stage has its fields where others have their geometry and their part.
void put_stage_task(std::byte* to, const StageTask& s) {
  put(to, kAtM, s.operand_bytes);
  put(to, kAtN, s.result_bytes);
  put(to, kAtK, s.memory);
  put(to, kAtBlocks, s.stage);
  put(to, kAtFirstBlock, s.owner);
  put(to, kAtPartFirst, s.row);
  put(to, kAtPartCount, s.rows);
  put(to, kAtBroughtBy, s.sequence);
  put(to, kAtPartOf, s.errand);
}

StageTask get_stage_task(const std::byte* from) {
  return {.errand = get<StageErrand>(from, kAtPartOf),
          .stage = get<std::int32_t>(from, kAtBlocks),
          .owner = get<std::int32_t>(from, kAtFirstBlock),
          .sequence = get<std::int64_t>(from, kAtBroughtBy),
          .row = get<std::int32_t>(from, kAtPartFirst),
          .rows = get<std::int32_t>(from, kAtPartCount),
          .operand_bytes = get<std::int64_t>(from, kAtM),
          .result_bytes = get<std::int64_t>(from, kAtN),
          .memory = get<std::int64_t>(from, kAtK)};
}

void put_part(std::byte* to, const MessagePart& part) {
  put(to, kAtPartFirst, static_cast<std::int32_t>(part.first));
  put(to, kAtPartCount, static_cast<std::int32_t>(part.count));
  put(to, kAtPartOf, part.of);
}

void put_header(std::byte* to, const Header& h) {
  std::memset(to, 0, kHeaderBytes);
  put(to, kAtMagic, kMagic);
  put(to, kAtVersion, kWireVersion);
  put(to, kAtKind, h.kind);
  put(to, kAtFault, h.fault);
  put(to, kAtPayload, static_cast<std::uint32_t>(h.payload_bytes));
  put(to, kAtPanelOrder, h.panel_order);
  put(to, kAtStorage,
      static_cast<std::uint8_t>((h.a_by_columns ? kAByColumns : 0) | (h.b_by_columns ? kBByColumns : 0) |
                                (h.in_place ? kInPlace : 0)));
  put(to, kAtTasklet, h.tasklet.value);
  put(to, kAtDevice, h.device.value);
  put(to, kAtOp, static_cast<std::int32_t>(h.op.value));
  put(to, kAtWork, h.work);
  put(to, kAtWire, h.wire);
  put(to, kAtOutput, h.output);
  put(to, kAtReason, h.reason);
  if (h.work == Work::gemm) {
    put(to, kAtM, h.gemm.m);
    put(to, kAtN, h.gemm.n);
    put(to, kAtK, h.gemm.k);
    put(to, kAtBlocks, static_cast<std::int32_t>(h.gemm.blocks));
    put(to, kAtFirstBlock, static_cast<std::int32_t>(h.gemm.first_block));
    put(to, kAtSeq, static_cast<std::int32_t>(h.gemm.seq));
    put(to, kAtLossBits, static_cast<std::uint8_t>(h.gemm.loss_bits));
  } else if (is_attention(h.work)) {
    put(to, kAtM, h.attention.pairs);
    put(to, kAtN, h.attention.seq);
    put(to, kAtK, h.attention.head_dim);
    put(to, kAtBlocks, static_cast<std::int32_t>(h.attention.queries));
  } else if (h.work == Work::stage) {
    put_stage_task(to, h.stage_task);
  }
  if (h.work != Work::stage) put_part(to, h.part);
  put(to, kAtDigest, static_cast<std::uint8_t>(h.digest ? 1 : 0));
  put(to, kAtComputed, h.computed.value());
  put(to, kAtColumns, h.columns);
  if (h.columns == Columns::kept) put(to, kAtBroughtBy, h.brought_by.value);
  put(to, kAtCompute, h.compute.value());
  put(to, kAtSequence, h.sequence);
  put(to, kAtPanels, static_cast<std::uint32_t>(h.panels));
}

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes header_bytes(const Frame& frame) {
  HeaderBytes header;
  std::memcpy(header.data(), frame.data(), header.size());
  return header;
}

// Of a header with the checksum's own bytes zero.
std::uint64_t header_checksum(HeaderBytes header) {
  put<std::uint64_t>(header.data(), kAtChecksum, 0);
  return XXH3_64bits(header.data(), header.size());
}

// The checksum covers the header and the payload.
std::uint64_t checksum(const HeaderBytes& header, std::span<const std::byte> frame) {
  const std::byte* const payload = frame.data() + kHeaderBytes;
  const std::size_t size = frame.size() - kHeaderBytes;
#ifdef CLEAVE_XXHASH_DISPATCH
  // The same sum, by the widest vectors that the processor has.
  if (!instructions_are_hidden()) return XXH3_64bits_withSeed_dispatch(payload, size, header_checksum(header));
#endif
  return XXH3_64bits_withSeed(payload, size, header_checksum(header));
}

void write_checksum(Frame& frame) { put(frame.data(), kAtChecksum, checksum(header_bytes(frame), frame.bytes())); }

Frame sealed_header(Frame frame) {
  put<std::uint8_t>(frame.data(), kAtHeaderSum, 1);
  put(frame.data(), kAtChecksum, header_checksum(header_bytes(frame)));
  return frame;
}

// Bounds of the payload of the kinds that have no geometry.
std::int64_t max_payload(Kind kind) {
  switch (kind) {
    case Kind::welcome: return kMaxFrameBytes - kHeaderBytes;
    case Kind::hello:
    case Kind::refusal:
    case Kind::refused: return kMaxText;
    default: return 0;
  }
}

Frame encode_plain(Header header, std::span<const std::byte> payload = {}) {
  header.payload_bytes = static_cast<std::int64_t>(payload.size());
  CLEAVE_ASSERT(!check_fields(header) && header.payload_bytes <= max_payload(header.kind), "{} with {} bytes",
                name_of(header.kind), header.payload_bytes);
  Frame frame(kHeaderBytes + header.payload_bytes);
  put_header(frame.data(), header);
  if (!payload.empty()) std::memcpy(frame.data() + kHeaderBytes, payload.data(), payload.size());
  write_checksum(frame);
  return frame;
}

std::span<const std::byte> cut_text(std::string_view text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), static_cast<std::size_t>(kMaxText))));
}

template <class T, class Byte>
auto view(Byte* frame, const Section& section) {
  using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
  return std::span<Element>(reinterpret_cast<Element*>(frame + section.offset),
                            static_cast<std::size_t>(section.bytes) / sizeof(T));
}

template <class Parts, class Byte>
void point_task(Parts& parts, Byte* frame, const Layout& layout) {
  for (std::size_t i = 0; i < parts.operands.size(); ++i) parts.operands[i] = view<std::byte>(frame, layout.arrays[i]);
  parts.places = view<OperandPlace>(frame, layout.places);
  parts.row_exponents = view<std::int16_t>(frame, layout.row_exponents);
  parts.column_exponents = view<std::int16_t>(frame, layout.column_exponents);
  parts.key = view<std::byte>(frame, layout.keyed);
}

template <class Parts, class Byte>
void point_result(Parts& parts, Byte* frame, const Layout& layout) {
  for (std::size_t i = 0; i < parts.outputs.size(); ++i) parts.outputs[i] = view<std::byte>(frame, layout.arrays[i]);
}

// A task that brings few operands, the rest being there, read in place or still to come, does not bound its result by
// its own length.
bool answer_fits(const Header& header) {
  if (header.kind != Kind::task || (header.work == Work::stage && !header.stage_task.answered())) return true;
  Header answer = result_header(header);
  answer.kind = Kind::result;  // computed whole, whatever is told of it
  if (answer.part.of == PartOf::k_blocks) answer.part = {};
  return layout_of(answer).fits;
}

// A frame for `header` with everything but the sections written; gaps between sections are zero.
Frame make_room(Header& header, const Layout& layout) {
  header.payload_bytes = layout.frame_bytes - kHeaderBytes;
  Frame frame(layout.frame_bytes);
  put_header(frame.data(), header);
  std::int64_t end = kHeaderBytes;
  const auto close_gap = [&](const Section& section) {
    if (section.bytes == 0) return;
    std::memset(frame.data() + end, 0, static_cast<std::size_t>(section.offset - end));
    end = section.offset + section.bytes;
  };
  for (const Section& section : layout.arrays) close_gap(section);
  close_gap(layout.places);
  close_gap(layout.row_exponents);
  close_gap(layout.column_exponents);
  close_gap(layout.keyed);
  return frame;
}

// A matrix of fp32 within the memory that may be read.
bool is_in_reach(const OperandPlace& place, std::int64_t rows, std::int64_t cols, std::int64_t reach) {
  constexpr std::int64_t kElement = size_of(DType::f32);
  if (place.offset < 0 || place.offset % kElement != 0 || place.offset > reach) return false;
  const std::int64_t room = (reach - place.offset) / kElement;
  // Without products that could overflow.
  if (place.ld < cols || cols > room) return false;
  return rows == 1 || place.ld <= (room - cols) / (rows - 1);
}

bool places_are_in_reach(const Frame& frame, const Header& header) {
  const auto places = view<OperandPlace>(frame.data(), layout_of(header).places);
  const auto reach = static_cast<std::int64_t>(frame.reach().size());
  if (header.work == Work::gemm) {
    std::array<std::int64_t, 2> a{header.gemm.m, header.gemm.k}, b{header.gemm.k, header.gemm.n};
    if (header.a_by_columns) std::swap(a[0], a[1]);
    if (header.b_by_columns) std::swap(b[0], b[1]);
    return is_in_reach(places[0], a[0], a[1], reach) && is_in_reach(places[1], b[0], b[1], reach);
  }
  return std::all_of(places.begin(), places.end(), [&](const OperandPlace& place) {
    return is_in_reach(place, header.attention.seq, header.attention.head_dim, reach);
  });
}

}  // namespace

std::string_view name_of(Fault fault) {
  constexpr std::array<std::string_view, 8> kNames = {"length", "magic",    "version",  "kind",
                                                      "field",  "geometry", "checksum", "payload"};
  return kNames.at(static_cast<std::size_t>(fault));
}

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 14> kNames = {"?",       "hello",    "welcome", "ready", "refusal",
                                                       "task",    "result",   "refused", "ping",  "pong",
                                                       "goodbye", "farewell", "release", "digest"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

std::string_view name_of(Reason reason) {
  constexpr std::array<std::string_view, 6> kNames = {"none",           "memory",     "malformed",
                                                      "unknown device", "non-finite", "columns"};
  const auto index = static_cast<std::size_t>(reason);
  return index < kNames.size() ? kNames[index] : "?";
}

Decoded<Header> decode_header(std::span<const std::byte> bytes, std::int64_t frame_bytes) {
  if (static_cast<std::int64_t>(bytes.size()) < kHeaderBytes || frame_bytes < kHeaderBytes ||
      frame_bytes > kMaxFrameBytes) {
    return Fault::length;
  }
  // Another process could change a borrowed frame at any time: what is checked is what is used.
  HeaderBytes copy;
  std::memcpy(copy.data(), bytes.data(), copy.size());
  const std::byte* const from = copy.data();
  if (get<std::uint32_t>(from, kAtMagic) != kMagic) return Fault::magic;
  if (get<std::uint16_t>(from, kAtVersion) != kWireVersion) return Fault::version;

  Header h;
  h.kind = get<Kind>(from, kAtKind);
  h.fault = get<InjectedFault>(from, kAtFault);
  h.payload_bytes = get<std::uint32_t>(from, kAtPayload);
  h.panel_order = get<std::uint8_t>(from, kAtPanelOrder);
  const auto storage = get<std::uint8_t>(from, kAtStorage);
  if (storage > (kAByColumns | kBByColumns | kInPlace)) return Fault::field;
  h.a_by_columns = (storage & kAByColumns) != 0;
  h.b_by_columns = (storage & kBByColumns) != 0;
  h.in_place = (storage & kInPlace) != 0;
  const auto header_sum = get<std::uint8_t>(from, kAtHeaderSum);
  if (header_sum > 1) return Fault::field;
  h.header_sum = header_sum == 1;
  const auto digest = get<std::uint8_t>(from, kAtDigest);
  if (digest > 1) return Fault::field;
  h.digest = digest == 1;
  h.tasklet = TaskletId(get<std::int64_t>(from, kAtTasklet));
  h.device = DeviceId(get<std::int64_t>(from, kAtDevice));
  h.op = OpId(get<std::int32_t>(from, kAtOp));
  h.work = get<Work>(from, kAtWork);
  h.wire = get<DType>(from, kAtWire);
  h.output = get<DType>(from, kAtOutput);
  h.reason = get<Reason>(from, kAtReason);
  h.computed = Seconds(get<double>(from, kAtComputed));
  h.columns = get<Columns>(from, kAtColumns);
  if (h.columns == Columns::kept) h.brought_by = TaskletId(get<std::int64_t>(from, kAtBroughtBy));
  h.compute = Seconds(get<double>(from, kAtCompute));
  const bool of_stage = h.work == Work::stage;
  if (!of_stage)
    h.part = {.of = get<PartOf>(from, kAtPartOf),
              .first = get<std::int32_t>(from, kAtPartFirst),
              .count = get<std::int32_t>(from, kAtPartCount)};
  h.sequence = get<std::uint32_t>(from, kAtSequence);
  h.panels = get<std::uint32_t>(from, kAtPanels);

  const auto d0 = get<std::int64_t>(from, kAtM), d1 = get<std::int64_t>(from, kAtN), d2 = get<std::int64_t>(from, kAtK);
  const auto d3 = get<std::int32_t>(from, kAtBlocks), d4 = get<std::int32_t>(from, kAtFirstBlock);
  if (of_stage) {
    h.stage_task = get_stage_task(from);
  } else if (h.work == Work::gemm) {
    h.gemm = {d0, d1, d2, d3, d4, get<std::int32_t>(from, kAtSeq), get<std::uint8_t>(from, kAtLossBits)};
  } else {
    if (d4 != 0) return Fault::field;
    if (is_attention(h.work)) {
      h.attention = {.pairs = d0, .seq = d1, .head_dim = d2, .queries = d3};
    } else if (d0 != 0 || d1 != 0 || d2 != 0 || d3 != 0) {
      return Fault::field;
    }
  }
  const auto is_zero = [](std::byte value) { return value == std::byte{0}; };
  if (h.columns != Columns::kept && !of_stage && !std::all_of(from + kAtBroughtBy, from + kAtPartOf, is_zero))
    return Fault::field;
  const bool gemm = h.work == Work::gemm;
  if (!std::all_of(from + (gemm ? kAtUnused : kAtLossBits), from + (gemm ? kAtSeq : kAtSequence), is_zero))
    return Fault::field;

  if (const auto fault = check_fields(h)) return *fault;
  if (has_block(h.kind)) {
    if (h.header_sum && h.kind == Kind::digest) return Fault::field;
    const Layout layout = layout_of(h);
    if (!layout.fits || !answer_fits(h)) return Fault::geometry;
    if (layout.frame_bytes != kHeaderBytes + h.payload_bytes) return Fault::geometry;
  } else if (h.header_sum) {
    return Fault::field;
  } else if (h.payload_bytes > max_payload(h.kind)) {
    return Fault::length;
  }
  if (frame_bytes != kHeaderBytes + h.payload_bytes) return Fault::length;
  return h;
}

Decoded<Header> decode(const Frame& frame) {
  if (frame.size() < kHeaderBytes) return Fault::length;
  const HeaderBytes bytes = header_bytes(frame);
  const auto header = decode_header(bytes, frame.size());
  if (!header) return header;
  if (header->header_sum && !frame.borrowed()) return Fault::field;
  const std::uint64_t sum = header->header_sum ? header_checksum(bytes) : checksum(bytes, frame.bytes());
  if (get<std::uint64_t>(bytes.data(), kAtChecksum) != sum) return Fault::checksum;
  if (header->in_place && !places_are_in_reach(frame, *header)) return Fault::geometry;
  return header;
}

Decoded<TaskView> decode_task(const Frame& frame) {
  const auto header = decode(frame);
  if (!header) return header.fault();
  if (header->kind != Kind::task) return Fault::kind;
  return view_task(frame, *header);
}

TaskView view_task(const Frame& frame, const Header& header) {
  TaskView parts;
  parts.header = header;
  point_task(parts, frame.data(), layout_of(header));
  parts.reach = frame.reach();
  return parts;
}

std::optional<TaskName> peek_task(const Frame& frame) {
  if (frame.size() < kHeaderBytes || get<Kind>(frame.data(), kAtKind) != Kind::task) return std::nullopt;
  const TaskName name{TaskletId(get<std::int64_t>(frame.data(), kAtTasklet)),
                      DeviceId(get<std::int64_t>(frame.data(), kAtDevice))};
  if (!name.tasklet.valid() || !name.device.valid()) return std::nullopt;
  return name;
}

Decoded<ResultView> decode_result(const Frame& frame) {
  const auto header = decode(frame);
  if (!header) return header.fault();
  if (header->kind != Kind::result) return Fault::kind;
  return view_result(frame, *header);
}

ResultView view_result(const Frame& frame, const Header& header) {
  ResultView parts;
  parts.header = header;
  point_result(parts, frame.data(), layout_of(header));
  return parts;
}

std::int64_t frame_bytes(const Header& header) {
  if (!has_block(header.kind) || check_fields(header)) return -1;
  const Layout layout = layout_of(header);
  return layout.fits && answer_fits(header) ? layout.frame_bytes : -1;
}

TaskDraft begin_task(const Header& header) {
  CLEAVE_ASSERT(header.kind == Kind::task && frame_bytes(header) >= 0, "tasklet {}", header.tasklet.value);
  const Layout layout = layout_of(header);
  TaskDraft draft;
  draft.header = header;
  draft.frame = make_room(draft.header, layout);
  point_task(draft, draft.frame.data(), layout);
  return draft;
}

ResultDraft begin_result(const Header& header) {
  CLEAVE_ASSERT(header.kind == Kind::result && frame_bytes(header) >= 0, "tasklet {}", header.tasklet.value);
  const Layout layout = layout_of(header);
  ResultDraft draft;
  draft.header = header;
  draft.frame = make_room(draft.header, layout);
  point_result(draft, draft.frame.data(), layout);
  return draft;
}

Header result_header(const Header& task) {
  Header header;
  header.kind = task.digest ? Kind::digest : Kind::result;
  header.tasklet = task.tasklet;
  header.device = task.device;
  header.op = task.op;
  header.work = task.work;
  header.wire = task.wire;
  header.output = task.output;
  header.gemm = task.gemm;
  header.part = task.part;
  header.attention = task.attention;
  header.stage_task = task.stage_task;
  return header;
}

SipKey key_of(const TaskView& task) {
  CLEAVE_ASSERT(task.key.size() == sizeof(SipKey), "tasklet {} asks for no digest", task.header.tasklet.value);
  SipKey key;
  std::copy(task.key.begin(), task.key.end(), key.begin());
  return key;
}

Frame encode_digest(const Header& task, const SipTag& digest, Seconds compute, Seconds computed) {
  Header header = result_header(task);
  CLEAVE_ASSERT(header.kind == Kind::digest, "tasklet {} asks for no digest", task.tasklet.value);
  header.compute = compute;
  header.computed = computed;
  const Layout layout = layout_of(header);
  Frame frame = make_room(header, layout);
  std::copy(digest.begin(), digest.end(), frame.data() + layout.keyed.offset);
  write_checksum(frame);
  return frame;
}

SipTag tag_of(const Frame& frame) {
  SipTag tag;
  std::memcpy(tag.data(), frame.data() + frame.size() - sizeof tag, sizeof tag);
  return tag;
}

void set_timing(ResultDraft& draft, Seconds compute, Seconds computed) {
  draft.header.compute = compute;
  draft.header.computed = computed;
  put(draft.frame.data(), kAtCompute, compute.value());
  put(draft.frame.data(), kAtComputed, computed.value());
}

Frame seal(TaskDraft&& draft) {
  write_checksum(draft.frame);
  return std::move(draft.frame);
}

Frame seal(ResultDraft&& draft) {
  write_checksum(draft.frame);
  return std::move(draft.frame);
}

Frame seal_header(TaskDraft&& draft) { return sealed_header(std::move(draft.frame)); }
Frame seal_header(ResultDraft&& draft) { return sealed_header(std::move(draft.frame)); }

Frame seal_payload(Frame frame) {
  if (frame.size() < kHeaderBytes || get<std::uint32_t>(frame.data(), kAtMagic) != kMagic ||
      get<std::uint8_t>(frame.data(), kAtHeaderSum) == 0) {
    return frame;
  }
  Frame own = frame.borrowed() ? frame.copy() : std::move(frame);
  put<std::uint8_t>(own.data(), kAtHeaderSum, 0);
  write_checksum(own);
  return own;
}

namespace {

Frame encode_kind(Kind kind, std::uint32_t sequence = 0) {
  Header header;
  header.kind = kind;
  header.sequence = sequence;
  return encode_plain(header);
}

}  // namespace

Frame encode_ready() { return encode_kind(Kind::ready); }
Frame encode_ping(std::uint32_t sequence) { return encode_kind(Kind::ping, sequence); }
Frame encode_pong(std::uint32_t sequence) { return encode_kind(Kind::pong, sequence); }
Frame encode_goodbye() { return encode_kind(Kind::goodbye); }
Frame encode_farewell() { return encode_kind(Kind::farewell); }

Frame encode_release(TaskletId columns, DeviceId device) {
  Header header;
  header.kind = Kind::release;
  header.tasklet = columns;
  header.device = device;
  return encode_plain(header);
}

Frame encode_refusal(std::string_view text) {
  Header header;
  header.kind = Kind::refusal;
  return encode_plain(header, cut_text(text));
}

Frame encode_refused(TaskletId tasklet, DeviceId device, Reason reason, std::string_view text) {
  Header header;
  header.kind = Kind::refused;
  header.tasklet = tasklet;
  header.device = device;
  header.reason = reason;
  return encode_plain(header, cut_text(text));
}

std::string text_of(const Frame& frame) {
  if (frame.size() <= kHeaderBytes) return {};
  return one_line({reinterpret_cast<const char*>(frame.data()) + kHeaderBytes,
                   static_cast<std::size_t>(frame.size() - kHeaderBytes)});
}

Frame encode_payload(Kind kind, std::span<const std::byte> payload) {
  Header header;
  header.kind = kind;
  return encode_plain(header, payload);
}

}  // namespace cleave::comm
