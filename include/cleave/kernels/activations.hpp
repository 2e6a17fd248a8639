// Activations of the three families, forward and backward, element by element. Server kernels.
//
// All views of one call have the same rows and cols; an output may be the same memory as an input (element for
// element). Sources: Hendrycks and Gimpel 2016 (GELU; the form with tanh, as GPT-2 has it), Shazeer 2020 (SwiGLU).
#pragma once

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels {

/// y = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3); computed as x / (1 + e^(-2u)), which is the same.
void gelu_new(Parallel& parallel, ConstRows x, Rows y);
/// dx = dy * (s + x s (1 - s) 2 u'),  s = 1 / (1 + e^(-2u)).
void gelu_new_backward(Parallel& parallel, ConstRows x, ConstRows dy, Rows dx);

/// y = max(x, 0); NaN stays NaN.
void relu(Parallel& parallel, ConstRows x, Rows y);
/// dx = x > 0 ? dy : 0.
void relu_backward(Parallel& parallel, ConstRows x, ConstRows dy, Rows dx);

/// y = silu(gate) * up,  silu(g) = g / (1 + e^-g).
void swiglu(Parallel& parallel, ConstRows gate, ConstRows up, Rows y);
/// d_gate = dy * up * s (1 + gate (1 - s)),  d_up = dy * silu(gate),  s = 1 / (1 + e^-gate).
void swiglu_backward(Parallel& parallel, ConstRows gate, ConstRows up, ConstRows dy, Rows d_gate, Rows d_up);

}  // namespace cleave::kernels
