// Figures of runs are those of stages of the same pieces, and are worked out once.
#include "stages/run_book.hpp"

#include <gtest/gtest.h>

#include "small_work.hpp"
#include "stages/layout.hpp"

namespace cleave::plan::stages {
namespace {

TEST(RunBook, HasTheFiguresOfStages) {
  const StageWork work = small_work({.family = "llama"}, 3);
  RunBook book(work);
  for (std::int64_t first = 0; first < std::ssize(work.pieces); ++first) {
    for (std::int64_t end = first + 1; end <= std::ssize(work.pieces); ++end) {
      const StageCost stage(work, first, end, 128);
      EXPECT_EQ(book.cost(first, end, 128).weights(), stage.weights());
      const RunFigures& figures = book.figures(stage, 128);
      EXPECT_EQ(figures.replica, replica_bytes(StageDraft(stage)));
      EXPECT_EQ(figures.flops, stage_flops(work, stage));
      EXPECT_EQ(figures.elements, stage.gradient_elements());
      EXPECT_EQ(figures.weights_for(1), in_bytes(stage.weights()));
      EXPECT_EQ(figures.rounding, rounding_bytes(work, StageDraft(stage)));
      const OwnerCost typical = owner_cost(work, stage, slices_between(work, stage, 0.4, 0.6), 128);
      double shares = 0;
      for (const PieceFigures& piece : figures.pieces) shares += piece.share;
      EXPECT_NEAR(shares, 1, 1e-12);
      EXPECT_EQ(figures.operands, in_bytes(typical.operands));
      // Of a run of several pieces any slice may need all weights.
      EXPECT_EQ(figures.loaded, in_bytes(end - first > 1 ? stage.weights() : typical.weights));
      // A replica has the weights already.
      EXPECT_EQ(figures.of_owner[1].weights, 0);
      EXPECT_GE(figures.of_owner[0].whole, figures.of_owner[0].of_all);
    }
  }
}

// Of a slice within a piece a sum makes something again whatever its share is, and multiplies as much as its share.
TEST(RunBook, SumsOfSlicesWithinAPieceAreLinear) {
  const StageWork work = small_work({.family = "gpt2", .layers = 3, .width = 512}, 3);
  RunBook book(work);
  for (const std::int64_t end : {1, 2, 4, 6}) {
    const StageCost stage(work, 0, end, 128);
    const RunFigures& figures = book.figures(stage, 128);
    double at = 0, recomputed = 0;
    for (const PieceFigures& piece : figures.pieces) {
      for (const double part : {0.25, 0.5, 1.0}) {
        const OwnerCost cost = owner_cost(work, stage, slices_between(work, stage, at, at + part * piece.share), 128);
        const double whole =
            owner_cost(work, stage, slices_between(work, stage, at, at + piece.share), 128).alone.value();
        const double expected = piece.recomputed + part * (whole - piece.recomputed);
        EXPECT_NEAR(cost.alone.value(), expected, 0.02 * whole) << end << ' ' << at << ' ' << part;
      }
      at += piece.share;
      recomputed += piece.share * piece.recomputed;
    }
    EXPECT_NEAR(figures.recomputed, recomputed, 1e-9 * recomputed + 1e-9);
    EXPECT_NEAR(figures.summed_beside, owner_cost(work, stage, slices_between(work, stage, 0, 1), 128).beside.value(),
                1e-9 * figures.summed_beside);
    if (end > 1) { EXPECT_GT(figures.recomputed, 0); }
  }
}

TEST(RunBook, WorksOutEachOnce) {
  const StageWork work = small_work({.family = "gpt2"}, 2);
  RunBook book(work);
  const StageCost& cost = book.cost(0, 2, 128);
  const RunFigures& figures = book.figures(cost, 128);
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) (void)book.figures(book.cost(i, i + 1, 128), 128);
  EXPECT_EQ(&book.cost(0, 2, 128), &cost);
  EXPECT_EQ(&book.figures(cost, 128), &figures);
  EXPECT_NE(&book.cost(0, 2, 256), &cost);
}

}  // namespace
}  // namespace cleave::plan::stages
