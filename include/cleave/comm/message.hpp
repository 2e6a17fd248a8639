// The messages between server and device ranks, and their codec: pure functions between structs and frames.
//
// docs/wire_format.md has the byte table. Every field is validated against its limits, and the payload's length against
// the one that the header's geometry asks for, before anything is allocated or looked at; what a decoder returns is
// consistent in itself. Whether it answers what was asked is the receiver's business. Decoded views point into the
// frame.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cleave/base/ids.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/frame.hpp"

namespace cleave::comm {

inline constexpr std::uint32_t kMagic = 0x464D4C43;  ///< "CLMF" in the order of the bytes
inline constexpr std::uint16_t kWireVersion = 9;     ///< raised when any byte changes its meaning

enum class Kind : std::uint8_t {
  hello = 1,      ///< device rank: here I am (Hello)
  welcome = 2,    ///< server: these are your devices and settings (Welcome)
  ready = 3,      ///< device rank: I can follow
  refusal = 4,    ///< either side: I cannot; text
  task = 5,       ///< server: compute this block
  result = 6,     ///< device: the block
  refused = 7,    ///< device: why this task was not computed; reason and text
  ping = 8,       ///< either side: are you there?
  pong = 9,       ///< the answer, with the ping's sequence number
  goodbye = 10,   ///< server: leave
  farewell = 11,  ///< device rank: the last message that it sends
  release = 12,   ///< server: the columns that this task brought are not used any more
  digest = 13     ///< device: a keyed digest of the block, for a task that asks for no more
};

enum class Work : std::uint8_t { none = 0, gemm = 1, attention_forward = 2, attention_backward = 3, stage = 4 };

/// What a task of a step in stages asks of a device.
enum class StageErrand : std::uint8_t {
  none = 0,
  begin = 1,      ///< a step begins: what is held of an earlier one is forgotten; never answered
  hold = 2,       ///< memory is kept, and with a payload weights come, of a stage or of slices of one; never answered
  forward = 3,    ///< one chunk through a stage
  recompute = 4,  ///< what of a sequence's forward pass its backward pass needs
  backward = 5,   ///< one chunk back
  sum = 6,        ///< a sequence is added to the sums of an owner's slices
  take_away = 7,  ///< or taken away again; never answered
  send_sums = 8,  ///< sums, or gradients that are made of them, are returned
  /// A whole visit of a sequence to a stage is recomputed, and a digest of its answers, one after another, returned:
  /// `rows` are the sequence's, `row` those of an answer, but for the last.
  witness_forward = 9,
  witness_backward = 10,
};

/// The errand recomputes a visit that another device has run.
[[nodiscard]] constexpr bool makes_again(StageErrand errand) {
  return errand == StageErrand::witness_forward || errand == StageErrand::witness_backward;
}

/// Why a device did not compute a task.
enum class Reason : std::uint8_t {
  none = 0,
  memory = 1,          ///< the task takes more than the device has
  malformed = 2,       ///< the frame could not be decoded
  unknown_device = 3,  ///< no such device on this rank
  non_finite = 4,      ///< operands or a block result were not finite
  absent = 5           ///< what the task is to use is not there: columns of B, weights, a sequence
};

/// How B comes to a GEMM's task.
enum class Columns : std::uint8_t {
  along = 0,  ///< with the task
  bring = 1,  ///< B is all that comes, and stays on the device under the task's id; nothing is computed or answered
  kept = 2    ///< it is there: another task brought it
};

/// Emulated wrong results, ordered by the server from its churn trace; the seed picks elements and amounts.
enum class InjectedFault : std::uint8_t {
  none = 0,
  element = 1,    ///< one element far off
  bit = 2,        ///< one bit of one element flipped
  swap_rows = 3,  ///< two rows exchanged
  zero = 4,       ///< all zero
  bias = 5,       ///< every element off by a small random amount of its own size
  nan = 6,        ///< one element not a number (an integer: the most negative one)
  infinity = 7,   ///< one element infinite (an integer: the largest one)
  stale = 8,      ///< what the device returned last for this operation and shape; honest the first time
  other = 9,      ///< its honest block of another task of the same shape; honest the first time
  huge = 10,      ///< one element near the largest number of its type
};

/// Where the server keeps a matrix that a device on its host reads there instead of being sent it: element (0, 0) is
/// `offset` bytes into Frame::reach(), rows are `ld` elements apart.
struct OperandPlace {
  std::int64_t offset = 0, ld = 0;
  bool operator==(const OperandPlace&) const = default;
};

/// Geometry of a GEMM block: C[m x n] += A[m x k] * B[k x n], covering K blocks [first_block, first_block +
/// k_blocks(k)) of an operation that has `blocks` of them.
struct GemmBlock {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t blocks = 1, first_block = 0;
  std::int64_t seq = 0;        ///< of a weight gradient: tokens of a sequence (kernels/token_sums.hpp)
  std::int64_t loss_bits = 0;  ///< of a weight gradient in fp16: kernels::TokenUnit::loss_bits
  bool operator==(const GemmBlock&) const = default;
  /// The block covers the whole depth: its result is finished, not a partial sum.
  [[nodiscard]] constexpr bool whole_depth() const { return k_blocks(k) == blocks; }
};

/// What a tasklet's messages divide among them.
enum class PartOf : std::uint8_t {
  none = 0,      ///< nothing: one message is whole
  rows = 1,      ///< rows of A, and so of C; the first message brings B too, unless the device keeps it
  k_blocks = 2,  ///< depth, in K blocks: columns of A and rows of B; the first message brings all exponents
  pairs = 3      ///< attention pairs
};

/// The part of a tasklet that one message carries: units [first, first + count) of `of`. Parts of a tasklet are sent
/// one after another. A part of rows or pairs is answered by its results. A part of K blocks is answered by a result
/// without numbers, an acknowledgement; the last one is answered by C, whole or in panels of rows.
struct MessagePart {
  PartOf of = PartOf::none;
  std::int64_t first = 0, count = 0;
  bool operator==(const MessagePart&) const = default;
  [[nodiscard]] constexpr bool whole() const { return of == PartOf::none; }
  [[nodiscard]] constexpr std::int64_t end() const { return first + count; }
};

/// Geometry of an attention block: `pairs` (sequence, key/value head) pairs of `queries` query heads each.
struct AttentionBlock {
  std::int64_t pairs = 0, seq = 0, head_dim = 0, queries = 0;
  bool operator==(const AttentionBlock&) const = default;
};

/// Flags in the payload of StageErrand::hold to a replica: it keeps the values of forward passes; it reads weights in
/// place (OperandPlace); it may put off sums over kept sequences until they are asked for.
inline constexpr std::int64_t kKeepsValues = 1, kWeightsInPlace = 2, kSumsLate = 4;

/// A task of a step in stages. The codec does not look into its payload; docs/wire_format.md says what it holds.
struct StageTask {
  StageErrand errand = StageErrand::none;
  std::int32_t stage = 0;          ///< number of the stage
  std::int32_t owner = -1;         ///< number of the owner of slices; -1: a replica's task
  std::int64_t sequence = 0;       ///< of the batch
  std::int32_t row = 0, rows = 0;  ///< tokens of the sequence
  std::int64_t operand_bytes = 0;  ///< payload of the task
  std::int64_t result_bytes = 0;   ///< payload of its answer
  std::int64_t memory = 0;         ///< hold: bytes that are taken on the device until the task is released
  bool operator==(const StageTask&) const = default;
  /// The device answers the task.
  [[nodiscard]] constexpr bool answered() const {
    return errand != StageErrand::begin && errand != StageErrand::hold && errand != StageErrand::take_away;
  }
  /// The device computes the answer but sends a digest of it only.
  [[nodiscard]] constexpr bool is_witness() const { return errand >= StageErrand::witness_forward; }
  /// The task may ask for a digest in place of its answer.
  [[nodiscard]] constexpr bool may_be_digested() const { return is_witness() || errand == StageErrand::send_sums; }
};

/// The header, decoded. Fields that a kind does not use have the values below, on the wire too.
struct Header {
  Kind kind = Kind::ping;
  std::uint32_t sequence = 0;  ///< ping, pong: number of the ping; task: seed of the injected fault
  TaskletId tasklet;           ///< task, result, refused
  DeviceId device;             ///< task, result, refused
  OpId op;                     ///< task, result: for logs and traces only
  Work work = Work::none;      ///< task, result
  DType wire = DType::f32;     ///< task, result: f32, bf16 or f16
  DType output = DType::f32;   ///< task, result: `wire` when finished, else partial_sum_type(wire); of a result whose
                               ///< sums over tokens do not fit that: i64
  InjectedFault fault = InjectedFault::none;  ///< task
  std::uint8_t panel_order = 0;  ///< task: PanelOrder; with `panels` it decides what the tasklet takes on the device
  bool a_by_columns = false;     ///< task, work = gemm: A is stored k x m, its columns one after another
  bool b_by_columns = false;     ///< task, work = gemm: B is stored n x k
  bool digest = false;           ///< task: the answer is a digest of the block, under the key that comes with it
  bool in_place = false;         ///< task, wire = f32: operands are where the task says; never on a wire
  Columns columns = Columns::along;  ///< task, work = gemm
  TaskletId brought_by;              ///< task with kept columns: which brought them
  Reason reason = Reason::none;      ///< refused
  GemmBlock gemm;                    ///< work = gemm; of the whole tasklet, also in a part
  AttentionBlock attention;          ///< work = attention; likewise
  StageTask stage_task;              ///< work = stage
  MessagePart part;                  ///< task, result: what this message carries of the tasklet
  Seconds compute;                   ///< result, digest: real time of the computation
  Seconds computed;                  ///< result, digest: from the task's arrival until it was computed
  std::int64_t panels = 0;           ///< task: in which it streams through the device under the model, at least 1
  std::int64_t payload_bytes = 0;    ///< set by the encoders
  bool header_sum = false;           ///< task, result: the checksum is of the header alone; set by seal_header()
  bool operator==(const Header&) const = default;
  /// Rows of A or C in this message. Requires: work = gemm.
  [[nodiscard]] constexpr std::int64_t rows() const { return part.of == PartOf::rows ? part.count : gemm.m; }
  /// Depth [k0, k0 + depth()) of the tasklet's operands in this message. Requires: work = gemm.
  [[nodiscard]] constexpr std::int64_t k0() const { return part.of == PartOf::k_blocks ? part.first * kBlockK : 0; }
  [[nodiscard]] constexpr std::int64_t depth() const {
    return part.of == PartOf::k_blocks ? std::min(gemm.k, part.end() * kBlockK) - k0() : gemm.k;
  }
  /// Attention pairs in this message. Requires: work = attention.
  [[nodiscard]] constexpr std::int64_t pairs() const { return part.of == PartOf::pairs ? part.count : attention.pairs; }
  /// How many units of `part.of` the whole tasklet has; 0 where it is not divided.
  [[nodiscard]] constexpr std::int64_t part_units() const {
    switch (part.of) {
      case PartOf::rows: return gemm.m;
      case PartOf::k_blocks: return k_blocks(gemm.k);
      case PartOf::pairs: return attention.pairs;
      case PartOf::none: break;
    }
    return 0;
  }
};

/// What can be wrong with a frame.
enum class Fault : std::uint8_t {
  length,    ///< shorter than a header, longer than the limit, or not as long as the header says
  magic,     ///< not one of our messages
  version,   ///< of another wire version
  kind,      ///< no such kind, or not the one that was expected
  field,     ///< a field outside its limits, or used by a kind that has none
  geometry,  ///< sizes that do not fit together or exceed the limit
  checksum,  ///< damaged on the way
  payload,   ///< inside the payload of a handshake
};

/// Names for messages and logs.
[[nodiscard]] std::string_view name_of(Fault fault);
[[nodiscard]] std::string_view name_of(Kind kind);
[[nodiscard]] std::string_view name_of(Reason reason);

/// A value, or what was wrong. A remote fault is a value, never an exception.
template <class T>
class Decoded {
 public:
  Decoded(T value) : content_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Decoded(Fault fault) : content_(fault) {}         // NOLINT(google-explicit-constructor)
  /// There is a value. The accessors below require it.
  [[nodiscard]] explicit operator bool() const { return content_.index() == 0; }
  [[nodiscard]] const T& operator*() const { return std::get<0>(content_); }
  [[nodiscard]] const T* operator->() const { return &std::get<0>(content_); }
  [[nodiscard]] Fault fault() const { return std::get<1>(content_); }  ///< Requires: no value.

 private:
  std::variant<T, Fault> content_;
};

/// Reads and validates a header; looks at its 128 bytes only. `frame_bytes` is the length of the whole frame.
[[nodiscard]] Decoded<Header> decode_header(std::span<const std::byte> header, std::int64_t frame_bytes);
/// Reads and validates a frame: header, length, checksum, and that operands in place lie within its reach. A checksum
/// of the header alone is accepted only of a frame that is read where its sender wrote it (Frame::borrowed()).
[[nodiscard]] Decoded<Header> decode(const Frame& frame);

/// A task's header with views of its payload, row-major in header.wire and aligned to 64 bytes; A and B transposed
/// where the header says that they are stored by columns:
///   gemm:               operands = A [m x k], B [k x n]; exponents only when gemm.blocks > 1;
///                       no A, or no B, where header.columns says so; in a part what it carries of them
///   attention_forward:  operands = Q [pairs][queries][seq][head_dim], K, V [pairs][seq][head_dim]
///   attention_backward: operands = Q, K, V, dO (as Q)
///   stage:              operands = one payload
/// With header.in_place the operands are empty, and there is a place of each matrix in their order: A, B; or every
/// seq x head_dim of Q, of K, of V, of dO.
template <class Byte, class Exponent, class Place>
struct TaskParts {
  Header header;
  std::array<std::span<Byte>, 4> operands;              ///< unused ones are empty
  std::span<Place> places;                              ///< empty unless header.in_place
  std::span<Exponent> row_exponents, column_exponents;  ///< e [m] of A's rows, f [n] of B's columns
  std::span<Byte> key;                                  ///< SipKey, where header.digest says so
};

/// The views of a task that was received.
struct TaskView : TaskParts<const std::byte, const std::int16_t, const OperandPlace> {
  std::span<const std::byte> reach;  ///< what places count from
};

/// A result's header with views of its payload, row-major in header.output and aligned to 64 bytes:
/// gemm: C [m x n]; attention_forward: O (as Q); attention_backward: dQ, dK, dV; in a part what it carries of them:
/// of K blocks, nothing; stage: one payload.
template <class Byte>
struct ResultParts {
  Header header;
  std::array<std::span<Byte>, 3> outputs;  ///< unused ones are empty
};
using ResultView = ResultParts<const std::byte>;

/// decode(), and views of the payload; they are valid as long as the frame. Errors: as decode(); Fault::kind for a
/// frame of another kind.
[[nodiscard]] Decoded<TaskView> decode_task(const Frame& frame);
[[nodiscard]] Decoded<ResultView> decode_result(const Frame& frame);

/// Views of the payload of a frame, without checking it again. Requires: decode() gave this header for the frame; its
/// kind is task, or result.
[[nodiscard]] TaskView view_task(const Frame& frame, const Header& header);
[[nodiscard]] ResultView view_result(const Frame& frame, const Header& header);

/// The names that a frame's header gives to a task.
struct TaskName {
  TaskletId tasklet;
  DeviceId device;
};

/// The task that a damaged frame seems to carry, so that its refusal can name it; it may be wrong. None where the frame
/// does not look like a task.
[[nodiscard]] std::optional<TaskName> peek_task(const Frame& frame);

/// A task or result to be filled in place and then sealed. The views stay valid when the draft is moved.
struct TaskDraft : TaskParts<std::byte, std::int16_t, OperandPlace> {
  Frame frame;
};
struct ResultDraft : ResultParts<std::byte> {
  Frame frame;
};

/// Bytes of the frame that a header of kind task, result or digest asks for; -1 when its fields are not legal or the
/// frame would exceed kMaxFrameBytes. For deciding before packing.
[[nodiscard]] std::int64_t frame_bytes(const Header& header);

/// Makes a frame of the right size with its header written and its payload ready to be filled.
/// Requires: frame_bytes(header) >= 0. Errors: std::bad_alloc.
[[nodiscard]] TaskDraft begin_task(const Header& header);
/// The same for a result or a digest.
[[nodiscard]] ResultDraft begin_result(const Header& header);
/// The header of the answer to a task: of kind result, or of kind digest if the task asks for one.
[[nodiscard]] Header result_header(const Header& task);

/// Writes Header::compute and Header::computed into a result that is not sealed yet.
void set_timing(ResultDraft& draft, Seconds compute, Seconds computed);

/// Writes the checksum of header and payload and returns the frame, which must not be changed afterwards.
[[nodiscard]] Frame seal(TaskDraft&& draft);
[[nodiscard]] Frame seal(ResultDraft&& draft);

/// The same with a checksum of the header alone, for a receiver that reads the frame in place. A transport that copies
/// the frame calls seal_payload() first.
[[nodiscard]] Frame seal_header(TaskDraft&& draft);
[[nodiscard]] Frame seal_header(ResultDraft&& draft);
/// The frame with the checksum that seal() would have written; a copy where it must change and is borrowed.
[[nodiscard]] Frame seal_payload(Frame frame);

/// SipHash-2-4-128 of a block's outputs, one after another as in a result.
template <class Byte>
[[nodiscard]] SipTag digest_of(const SipKey& key, const std::array<std::span<Byte>, 3>& outputs) {
  SipHash hash(key);
  for (const std::span<Byte>& output : outputs) hash.take(output);
  return hash.tag();
}

/// The key of a task that asks for a digest. Requires: task.header.digest.
[[nodiscard]] SipKey key_of(const TaskView& task);
/// The answer to a task that asks for a digest: a sealed frame of kind digest.
[[nodiscard]] Frame encode_digest(const Header& task, const SipTag& digest, Seconds compute, Seconds computed);
/// The digest in a frame. Requires: decode() accepted the frame, and its kind is digest.
[[nodiscard]] SipTag tag_of(const Frame& frame);

/// Messages without numbers.
[[nodiscard]] Frame encode_ready();
[[nodiscard]] Frame encode_ping(std::uint32_t sequence);
[[nodiscard]] Frame encode_pong(std::uint32_t sequence);
[[nodiscard]] Frame encode_goodbye();
[[nodiscard]] Frame encode_farewell();
[[nodiscard]] Frame encode_release(TaskletId columns, DeviceId device);

/// Messages with a text, which is cut to kMaxText bytes.
inline constexpr std::int64_t kMaxText = 4096;
[[nodiscard]] Frame encode_refusal(std::string_view text);
[[nodiscard]] Frame encode_refused(TaskletId tasklet, DeviceId device, Reason reason, std::string_view text);
/// The text in a frame, as one_line() shows it. Requires: decode() accepted the frame, and its kind is refusal or
/// refused.
[[nodiscard]] std::string text_of(const Frame& frame);

}  // namespace cleave::comm
