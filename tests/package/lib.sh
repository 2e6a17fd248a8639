# shellcheck shell=bash
# What the packaging tests share; tests/e2e/lib.sh has scratch folders and expectations. Sourced. CTest sets CLEAVE_BUILD.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
BUILD=${CLEAVE_BUILD:-$TOP/build/release}

# check_prefix PREFIX: what a user of an installed Cleave tries first.
check_prefix() {
  local prefix=$1
  expect_code 0 "--version" "$prefix/bin/cleave" --version
  for part in '^cleave [0-9]' 'Open MPI|MPICH|Intel' 'BLIS .* kernels' 'HDF5 [0-9]'; do expect_text "--version" "$part"; done
  expect_code 0 "manual page" cat "$prefix/share/man/man1/cleave.1"
  for command in train simulate calibrate; do expect_text "manual page" "^\.SS $command\$"; done
  expect_code 0 "completion" bash -c '. "$1"; COMP_WORDS=(cleave train --r) COMP_CWORD=2; _cleave; echo "${COMPREPLY[*]}"' _ \
    "$prefix/share/bash-completion/completions/cleave"
  expect_text "completion" '^--resume --resume-with-changes$'
  # The scripts find the program of their own prefix; PATH has none.
  write_input
  expect_code 0 "installed run.sh" env -u CLEAVE "$prefix/share/cleave/jobs/run.sh" "$scratch/input.yaml" 2 train.steps=1 --quiet
  [ -s "$scratch/run/checkpoint-1.h5" ] || fail "installed run.sh: no checkpoint"
  rm -rf "$scratch/run"
}
