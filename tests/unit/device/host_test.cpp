// A device rank behind a loopback transport, with this test as its server: results are those of the kernels called
// directly, limits are enforced, and every way of ending ends.
#include "cleave/device/host.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "as_server.hpp"
#include "cleave/base/clock.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::device {
namespace {

// Whole products and runs of K blocks in every wire type, bit for bit as the kernels give them.
TEST(DeviceHost, GemmIsTheKernels) {
  Server server;
  server.start(welcome({device(0)}));
  kernels::Parallel parallel(1);
  const std::int64_t m = 17, n = 33;
  for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t whole_k : {std::int64_t{40}, 2 * kBlockK + 100}) {
      std::vector<float> a = numbers(static_cast<std::size_t>(m * whole_k), 1);
      std::vector<float> b = numbers(static_cast<std::size_t>(whole_k * n), 2);
      kernels::round_to(wire, kernels::Rows(a.data(), m, whole_k));
      kernels::round_to(wire, kernels::Rows(b.data(), whole_k, n));
      std::vector<std::int16_t> e(m), f(n);
      const kernels::ConstMatrix a_view(a.data(), whole_k), b_view(b.data(), n);
      ASSERT_EQ(kernels::norm_exponents(parallel, a_view, m, whole_k, e), kernels::ProductStatus::ok);
      ASSERT_EQ(kernels::norm_exponents(parallel, b_view.transposed(), n, whole_k, f), kernels::ProductStatus::ok);

      struct Run {
        std::int64_t first, k;
      };
      std::vector<Run> runs = {{0, whole_k}};
      if (whole_k > kBlockK) runs.insert(runs.end(), {{0, 2 * kBlockK}, {2, 100}, {1, kBlockK + 100}});
      for (const Run run : runs) {
        comm::Header header = gemm_header(m, n, run.k, k_blocks(whole_k), run.first, wire);
        header.a_by_columns = run.k % 2 == 0;
        header.b_by_columns = run.first > 0;
        comm::TaskDraft draft = comm::begin_task(header);
        std::vector<float> strip_a,
            strip_b(b.begin() + run.first * kBlockK * n, b.begin() + (run.first * kBlockK + run.k) * n);
        for (std::int64_t i = 0; i < m; ++i) {
          const auto row = a.begin() + i * whole_k + run.first * kBlockK;
          strip_a.insert(strip_a.end(), row, row + run.k);
        }
        if (header.a_by_columns) strip_a = transposed(strip_a, m, run.k);
        if (header.b_by_columns) strip_b = transposed(strip_b, run.k, n);
        pack(draft.operands[0], wire, strip_a);
        pack(draft.operands[1], wire, strip_b);
        std::copy_n(e.begin(), draft.row_exponents.size(), draft.row_exponents.begin());
        std::copy_n(f.begin(), draft.column_exponents.size(), draft.column_exponents.begin());
        server.send(comm::seal(std::move(draft)));
        const comm::Frame frame = server.expect(Kind::result);
        const auto result = comm::decode_result(frame);
        ASSERT_TRUE(result);
        EXPECT_EQ(result->header.gemm, header.gemm);
        EXPECT_EQ(result->header.tasklet, header.tasklet);
        EXPECT_EQ(result->header.op, header.op);

        std::vector<std::byte> expected;
        if (header.gemm.whole_depth()) {
          std::vector<float> c(static_cast<std::size_t>(m * n));
          ASSERT_EQ(kernels::multiply_whole(parallel, {m, n, whole_k}, a_view, b_view, e, f, partial_sum_type(wire),
                                            kernels::Matrix(c.data(), n)),
                    kernels::ProductStatus::ok);
          expected = packed(wire, c);
        } else {
          expected.resize(static_cast<std::size_t>(m * n * size_of(partial_sum_type(wire))));
          ASSERT_EQ(kernels::multiply_box(parallel, {m, n, run.k}, a_view.from(0, run.first * kBlockK),
                                          b_view.from(run.first * kBlockK, 0), e, f,
                                          {partial_sum_type(wire), expected.data(), n}),
                    kernels::ProductStatus::ok);
        }
        EXPECT_EQ(copy_of(result->outputs[0]), expected);
      }
    }
  }
  const HostReport report = server.stop();
  EXPECT_EQ(report.end, HostEnd::goodbye);
  EXPECT_EQ(report.computed, 3 * 5);
  EXPECT_EQ(report.devices, std::vector{DeviceId(0)});
}

TEST(DeviceHost, AttentionIsTheKernels) {
  Server server;
  server.start(welcome({device(0)}));
  const std::int64_t pairs = 3, queries = 2, seq = 9, head_dim = 4;
  const std::int64_t key = seq * head_dim, query = key * queries;
  const kernels::PairShape shape{queries, seq, head_dim};
  std::vector<float> scratch(static_cast<std::size_t>(kernels::attention_backward_scratch(shape).value()));
  for (const DType wire : {DType::f32, DType::bf16}) {
    std::vector<float> q = numbers(static_cast<std::size_t>(pairs * query), 1);
    std::vector<float> k = numbers(static_cast<std::size_t>(pairs * key), 2);
    std::vector<float> v = numbers(static_cast<std::size_t>(pairs * key), 3);
    std::vector<float> d_o = numbers(static_cast<std::size_t>(pairs * query), 4);
    for (std::vector<float>* x : {&q, &k, &v, &d_o}) {
      kernels::round_to(wire, kernels::Rows(x->data(), 1, static_cast<std::int64_t>(x->size())));
    }
    for (const Work work : {Work::attention_forward, Work::attention_backward}) {
      comm::Header header = task_header(work, wire);
      header.attention = {pairs, seq, head_dim, queries};
      comm::TaskDraft draft = comm::begin_task(header);
      pack(draft.operands[0], wire, q);
      pack(draft.operands[1], wire, k);
      pack(draft.operands[2], wire, v);
      if (work == Work::attention_backward) pack(draft.operands[3], wire, d_o);
      server.send(comm::seal(std::move(draft)));
      const comm::Frame frame = server.expect(Kind::result);
      const auto result = comm::decode_result(frame);
      ASSERT_TRUE(result);

      std::vector<float> out0(q.size()), dk(k.size()), dv(v.size());
      for (std::int64_t p = 0; p < pairs; ++p) {
        if (work == Work::attention_forward) {
          kernels::attention_forward(shape, &q[p * query], &k[p * key], &v[p * key], &out0[p * query], scratch);
        } else {
          kernels::attention_backward(shape, &q[p * query], &k[p * key], &v[p * key], &d_o[p * query], &out0[p * query],
                                      &dk[p * key], &dv[p * key], scratch);
        }
      }
      EXPECT_EQ(copy_of(result->outputs[0]), packed(wire, out0));
      if (work == Work::attention_backward) {
        EXPECT_EQ(copy_of(result->outputs[1]), packed(wire, dk));
        EXPECT_EQ(copy_of(result->outputs[2]), packed(wire, dv));
      } else {
        EXPECT_TRUE(result->outputs[1].empty());
      }
    }
  }
  EXPECT_EQ(server.stop().computed, 4);
}

TEST(DeviceHost, EnforcesTheMemoryOfEachDevice) {
  const std::int64_t needed = gemm_resident_bytes({4, 3, 8}, DType::f32, false, true, PanelOrder::whole, 1).value();
  EXPECT_EQ(needed, (4 * 8 + 8 * 3 + 4 * 3) * 4);
  Server server;
  server.start(welcome({device(5, needed), device(6, needed - 1)}));
  server.send(small_task(5, 1));
  server.expect(Kind::result);
  server.send(small_task(6, 2));
  const comm::Frame refused = server.expect(Kind::refused);
  const auto header = comm::decode(refused);
  EXPECT_EQ(header->reason, Reason::memory);
  EXPECT_EQ(header->tasklet, TaskletId(2));
  EXPECT_EQ(header->device, DeviceId(6));
  EXPECT_NE(comm::text_of(refused).find(std::to_string(needed)), std::string::npos);
  server.send(small_task(7, 3));
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::unknown_device);
  const HostReport report = server.stop();
  EXPECT_EQ(report.refused, 2);
  EXPECT_EQ(report.devices, (std::vector{DeviceId(5), DeviceId(6)}));
}

// What streams through in panels takes less than what comes whole: the plan's figure holds, under every clock.
TEST(DeviceHost, CountsTheMemoryOfPanels) {
  const auto needed = [](std::int64_t panels) {
    return gemm_resident_bytes({64, 8, 16}, DType::f32, false, true, PanelOrder::row_resident, panels).value();
  };
  EXPECT_LT(needed(8), needed(1));
  Server server;
  server.start(welcome({device(0, needed(8))}));
  for (const std::int64_t panels : {1, 8}) {
    comm::Header header = gemm_header(64, 8, 16, 1, 0, DType::f32);
    header.panel_order = static_cast<std::uint8_t>(PanelOrder::row_resident);
    header.panels = panels;
    comm::TaskDraft draft = comm::begin_task(header);
    pack(draft.operands[0], DType::f32, numbers(64 * 16, 1));
    pack(draft.operands[1], DType::f32, numbers(16 * 8, 2));
    server.send(comm::seal(std::move(draft)));
    server.expect(panels == 1 ? Kind::refused : Kind::result);
  }
  server.stop();
}

// Columns of B that came ahead give the bits of columns that come along; they take memory until they are released.
TEST(DeviceHost, KeepsColumnsUntilTheyAreReleased) {
  const std::int64_t m = 4, n = 3, k = 8, columns = kept_columns_bytes(n, k, DType::f32, false).value();
  const std::int64_t beside = gemm_resident_bytes_beside_columns({m, n, k}, DType::f32, false, true, 1).value();
  EXPECT_EQ(columns + beside, gemm_resident_bytes({m, n, k}, DType::f32, false, true, PanelOrder::whole, 1).value());
  Server server;
  server.start(welcome({device(0, columns + beside)}));
  server.send(small_task(0, 1));
  const std::vector<std::byte> expected = copy_of(comm::decode_result(server.expect(Kind::result))->outputs[0]);

  comm::Header bring = gemm_header(0, n, k, 1, 0, DType::f32);
  bring.tasklet = TaskletId(2);
  bring.columns = comm::Columns::bring;
  for (int times = 0; times < 2; ++times) {  // they come twice and are kept once
    comm::TaskDraft draft = comm::begin_task(bring);
    pack(draft.operands[1], DType::f32, numbers(24, 2));
    server.send(comm::seal(std::move(draft)));
  }
  const auto use = [&](std::int64_t tasklet, std::int64_t brought_by, std::int64_t wide, DType wire = DType::f32) {
    comm::Header header = gemm_header(m, wide, k, 1, 0, wire);
    header.tasklet = TaskletId(tasklet);
    header.columns = comm::Columns::kept;
    header.brought_by = TaskletId(brought_by);
    comm::TaskDraft task = comm::begin_task(header);
    pack(task.operands[0], wire, numbers(32, 1));
    server.send(comm::seal(std::move(task)));
  };
  for (const std::int64_t tasklet : {3, 4}) {
    use(tasklet, 2, n);
    const comm::Frame frame = server.expect(Kind::result);
    EXPECT_EQ(copy_of(comm::decode_result(frame)->outputs[0]), expected);
  }
  const auto use_rows = [&](std::int64_t brought_by, std::int64_t first) {
    comm::Header header = gemm_header(m, n, k, 1, 0, DType::f32);
    header.tasklet = TaskletId(10 + brought_by);
    header.columns = comm::Columns::kept;
    header.brought_by = TaskletId(brought_by);
    header.part = {.of = comm::PartOf::rows, .first = first, .count = 2};
    comm::TaskDraft task = comm::begin_task(header);
    const std::vector<float> a = numbers(32, 1);
    pack(task.operands[0], DType::f32, {a.begin() + first * k, a.begin() + (first + 2) * k});
    server.send(comm::seal(std::move(task)));
  };
  std::vector<std::byte> rows;
  for (const std::int64_t first : {0, 2}) {
    use_rows(2, first);
    const comm::Frame frame = server.expect(Kind::result);
    const auto part = comm::decode_result(frame);
    rows.insert(rows.end(), part->outputs[0].begin(), part->outputs[0].end());
  }
  EXPECT_EQ(rows, expected);
  use_rows(9, 0);
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::absent);
  use_rows(9, 2);  // passed over

  server.send(small_task(0, 5));
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::memory);
  use(6, 9, n);
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::absent);
  use(7, 2, n - 1);
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::absent);
  use(7, 2, n, DType::bf16);
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::absent);
  server.send(comm::encode_release(TaskletId(2), DeviceId(0)));
  use(8, 2, n);
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::absent);
  server.send(small_task(0, 9));
  server.expect(Kind::result);
  server.stop();
}

TEST(DeviceHost, RefusesWhatIsDamagedOrNotFinite) {
  Server server;
  server.start(welcome({device(0)}));
  comm::Frame damaged = small_task(0, 21);
  damaged.data()[damaged.size() - 1] ^= std::byte{1};
  server.send(std::move(damaged));
  const auto malformed = comm::decode(server.expect(Kind::refused));
  EXPECT_EQ(malformed->reason, Reason::malformed);
  EXPECT_EQ(malformed->tasklet, TaskletId(21));

  comm::TaskDraft draft = comm::begin_task(gemm_header(2, 2, 2, 1, 0, DType::f32));
  pack(draft.operands[0], DType::f32, {1, std::numeric_limits<float>::quiet_NaN(), 1, 1});
  pack(draft.operands[1], DType::f32, {1, 1, 1, 1});
  server.send(comm::seal(std::move(draft)));
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::non_finite);

  // Sums of some K blocks and pairs of attention are looked at as whole products are.
  const auto refuses_results_of = [&](comm::Header header, std::size_t bad) {
    comm::TaskDraft task = comm::begin_task(header);
    for (std::size_t i = 0; i < task.operands.size(); ++i) {
      std::vector<float> values(task.operands[i].size() / static_cast<std::size_t>(size_of(header.wire)), 1.0F);
      if (i == bad) values[1] = std::numeric_limits<float>::infinity();
      pack(task.operands[i], header.wire, values);
    }
    std::ranges::fill(task.row_exponents, std::int16_t{6});
    std::ranges::fill(task.column_exponents, std::int16_t{6});
    server.send(comm::seal(std::move(task)));
    EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::non_finite);
  };
  refuses_results_of(gemm_header(2, 2, kBlockK, 2, 0, DType::f32), 0);
  comm::Header over_tokens = gemm_header(2, 2, kBlockK, 2, 0, DType::bf16);
  over_tokens.gemm.seq = 8;
  refuses_results_of(over_tokens, 1);
  comm::Header attention = task_header(Work::attention_forward, DType::f32);
  attention.attention = {.pairs = 1, .seq = 3, .head_dim = 8, .queries = 1};
  refuses_results_of(attention, 2);

  // Rubbish gets no answer and does no harm.
  comm::Frame rubbish(1000);
  std::memset(rubbish.data(), 0x5a, 1000);
  server.send(std::move(rubbish));
  server.send(comm::Frame());
  server.send(small_task(0, 22));
  server.expect(Kind::result);
  const HostReport report = server.stop();
  EXPECT_EQ(report.malformed, 3);
}

TEST(DeviceHost, LiesOnOrderAndOnlyThen) {
  Server server;
  server.start(welcome({device(0)}));
  const auto answer = [&](comm::InjectedFault lie) {
    server.send(small_task(0, 1, lie));
    const comm::Frame frame = server.expect(Kind::result);
    return copy_of(comm::decode_result(frame)->outputs[0]);
  };
  const auto honest = answer(comm::InjectedFault::none);
  EXPECT_EQ(answer(comm::InjectedFault::none), honest);
  for (const comm::InjectedFault lie :
       {comm::InjectedFault::element, comm::InjectedFault::bit, comm::InjectedFault::swap_rows,
        comm::InjectedFault::zero, comm::InjectedFault::bias, comm::InjectedFault::nan,
        comm::InjectedFault::infinity}) {
    const auto wrong = answer(lie);
    EXPECT_NE(wrong, honest) << static_cast<int>(lie);
    EXPECT_EQ(answer(lie), wrong) << static_cast<int>(lie);
  }
  EXPECT_EQ(answer(comm::InjectedFault::stale), honest);  // nothing older is known
  server.stop();
}

TEST(DeviceHost, RefusesKernelsThatItCannotUse) {
  Server server;
  server.expect(Kind::hello);
  comm::Welcome terms = welcome({device(0)});
  terms.gemm_kernels = "abacus";
  server.send(comm::encode(terms));
  EXPECT_NE(comm::text_of(server.expect(Kind::refusal)).find("abacus"), std::string::npos);
  const HostReport report = server.report();
  EXPECT_EQ(report.end, HostEnd::refused);
  EXPECT_NE(report.why.find("abacus"), std::string::npos);
}

TEST(DeviceHost, LeavesWhenRefused) {
  Server server;
  server.expect(Kind::hello);
  server.send(comm::encode_refusal("too many ranks"));
  const HostReport report = server.report();
  EXPECT_EQ(report.end, HostEnd::refused);
  EXPECT_EQ(report.why, "too many ranks");
}

TEST(DeviceHost, LeavesWhenTheServerFallsSilent) {
  Server server;
  server.answer_pings = false;
  comm::Welcome terms = welcome({device(0)});
  terms.heartbeat = Seconds(0.02);
  terms.patience = Seconds(0.2);
  server.start(terms);
  const HostReport report = server.report();
  EXPECT_EQ(report.end, HostEnd::server_gone);
  server.expect(Kind::ping);
}

TEST(DeviceHost, StaysWhileTheServerAnswersPings) {
  Server server;
  comm::Welcome terms = welcome({device(0)});
  terms.heartbeat = Seconds(0.02);
  terms.patience = Seconds(1);
  server.start(terms);
  const SteadyClock clock;
  for (const Seconds end = clock.now() + Seconds(2); clock.now() < end;) {
    const comm::Frame ping = server.expect(Kind::ping);
    server.send(comm::encode_pong(comm::decode(ping)->sequence));
  }
  EXPECT_EQ(server.stop().end, HostEnd::goodbye);
}

TEST(DeviceHost, LeavesWhenTheTransportSaysThatTheServerIsGone) {
  Server server;
  server.start(welcome({device(0)}));
  server.transport().close(Seconds(0));
  EXPECT_EQ(server.report().end, HostEnd::server_gone);
}

TEST(DeviceHost, LeavesWhenNobodyWelcomesIt) {
  HostOptions options;
  options.welcome_patience = Seconds(0.1);
  Server server(options);
  EXPECT_EQ(server.report().end, HostEnd::server_gone);
}

}  // namespace
}  // namespace cleave::device
