#!/usr/bin/env bash
# A processor without AVX2, emulated whole (QEMU's user mode, Debian package qemu-user), so that no library can see more:
# the program starts there, takes generic kernels, and trains to the bits that the same kernels give here.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$(uname -m)" = x86_64 ] || { echo "emulates an x86-64 processor, and this is none"; exit 77; }
unset CLEAVE_INSTRUCTIONS # more than this processor has, where all tests run with it
qemu=$(command -v qemu-x86_64) || { echo "no qemu-x86_64 (Debian package qemu-user)"; exit 77; }
write_input
few=(train.steps=2 train.batch=2 train.eval_every=0 model.n_layer=1 server.gemm_kernels=generic)
expect_code 0 "here" "$CLEAVE" train "$scratch/input.yaml" --quiet "${few[@]}" "output.dir=$scratch/here"
expect_code 0 "version" "$qemu" -cpu Nehalem "$CLEAVE" --version
expect_text "version" 'generic kernels'
expect_code 0 "on a Nehalem" "$qemu" -cpu Nehalem "$CLEAVE" train "$scratch/input.yaml" --quiet "${few[@]}" \
  "output.dir=$scratch/there"
here=$(hash_of "$scratch/here" 2) there=$(hash_of "$scratch/there" 2)
[ -n "$here" ] && [ "$here" = "$there" ] || fail "other bits: $here here, $there on a Nehalem"
expect_code 1 "AVX2 kernels on a Nehalem" "$qemu" -cpu Nehalem "$CLEAVE" train "$scratch/input.yaml" --quiet "${few[@]}" \
  server.gemm_kernels=haswell "output.dir=$scratch/refused"
expect_text "AVX2 kernels on a Nehalem" 'they need avx2, and this processor has baseline'
