#!/usr/bin/env bash
# Within one set of matrix kernels the bits are the same whatever else the processor has; and what it has not is asked of
# nobody. Every level of instructions that this processor offers is tried, by the one switch that hides the others.
#
#   bash tests/e2e/instructions.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input

# with LEVEL COMMAND...: the command where no more than LEVEL is to be seen.
with() {
  local level=$1
  shift
  (
    unset GLIBC_TUNABLES
    export CLEAVE_INSTRUCTIONS=$level
    hide_instructions
    "$@"
  )
}

# The highest level that the processor has, by what the program answers to who asks for more.
levels=()
for level in baseline avx2 avx512; do
  ! with "$level" "$CLEAVE" --version > "$scratch/out" 2>&1 || levels+=("$level")
done
best=${levels[-1]}
echo "levels of this processor: ${levels[*]}"
[ "${levels[0]}" = baseline ] || fail "the program does not start on the least processor"
least=$(with baseline "$CLEAVE" --version | sed -n 's/.*, \([a-z0-9]*\) kernels$/\1/p')  # generic, or on Arm what BLIS has there
case $best in baseline) sets=("$least") ;; avx2) sets=("$least" haswell) ;; avx512) sets=("$least" haswell skx) ;; esac

for family in gpt2 llama; do
  for kernels in "${sets[@]}"; do
    wanted=
    for level in "${levels[@]}"; do
      case $kernels:$level in haswell:baseline | skx:baseline | skx:avx2) continue ;; esac
      folder=$scratch/$family-$kernels-$level
      expect_code 0 "$family, $kernels kernels, $level" with "$level" cleave_on "$1" train "$scratch/input.yaml" --quiet \
        "model.family=$family" "server.gemm_kernels=$kernels" "output.dir=$folder"
      got=$(hash_of "$folder" 4)
      echo "$family, $kernels kernels, $level: $got"
      [ "$got" = "${wanted:=$got}" ] || fail "$family, $kernels kernels: $level has other bits than $wanted"
    done
  done
done

# Left to itself the program takes the best kernels that it can see.
expect_code 0 "version" with baseline "$CLEAVE" --version
expect_text "kernels of the least processor" "$least kernels"
[ "$(uname -m)" != x86_64 ] || expect_text "kernels of the least x86-64" 'generic kernels'
# What cannot run is refused before anything is computed.
expect_code 1 "kernels that the processor lacks" with baseline cleave_on "$1" train "$scratch/input.yaml" --quiet \
  server.gemm_kernels=haswell "output.dir=$scratch/refused"
expect_text "kernels that the processor lacks" 'haswell.*they need avx2, and this processor has baseline'
expect_code 1 "a level that there is not" with sse9 "$CLEAVE" --version
expect_text "a level that there is not" 'use baseline, avx2 or avx512'
if [ "$best" != avx512 ]; then
  expect_code 1 "a level that the processor lacks" with avx512 "$CLEAVE" --version
  expect_text "a level that the processor lacks" "this processor has $best"
fi
