// Token and position embedding. Server kernels.
#pragma once

#include <cstdint>
#include <span>

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// x(r,.) = wte(tokens[r],.) + wpe(r mod seq + pos_offset,.), for rows r of a batch of sequences of length seq.
/// wpe.data == nullptr: token embedding alone.
/// Requires: 0 <= tokens[r] < wte.rows; tokens.size() == x.rows.
void embed(Parallel& parallel, std::span<const std::int32_t> tokens, std::int64_t seq, ConstRows wte, ConstRows wpe,
           std::int64_t pos_offset, Rows x);

/// dwte(tokens[r],.) += s dx(r,.) and dwpe(r mod seq + pos_offset,.) += s dx(r,.), in the order of r; s = `scale`, a
/// power of two. It adds to what is there: dwte may hold the gradient of a tied output matrix already. A table whose
/// data is nullptr (frozen, or no positions) gets no gradient. Requires: as embed().
void embed_backward(Parallel& parallel, std::span<const std::int32_t> tokens, std::int64_t seq, ConstRows dx, Rows dwte,
                    Rows dwpe, std::int64_t pos_offset, float scale = 1);

}  // namespace cleave::kernels
