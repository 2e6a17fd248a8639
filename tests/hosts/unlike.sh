#!/usr/bin/env bash
# Three hosts, one of which has a lesser processor: a run says which one cannot follow, and goes on without it; or agrees on
# kernels that all can run.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

if "$CLEAVE" --version | grep -q 'generic'; then
  echo "skipped: processors that differ, for this one has nothing to hide"
  exit 77
fi
trap 'hosts_down; finish' EXIT
hosts_up_or_skip 3
make_unlike "$scratch/program"

write_input
run=(train.steps=2 train.eval_every=0 checkpoint.every=0)
expect_code 0 "a host that cannot follow" launch_on_hosts 3 4 "$scratch/program" train "$scratch/input.yaml" "${run[@]}" "output.dir=$scratch/left"
expect_text "a host that cannot follow" "rank 1 .*${host}2.*kernels"
tr -d ' \n' < "$scratch/left/ranks.json" | grep -Eq '"rank":1,[^}]*"absent"' || fail "ranks.json does not say that rank 1 is absent"
expect_code 0 "kernels for all" launch_on_hosts 3 4 "$scratch/program" train "$scratch/input.yaml" "${run[@]}" server.gemm_kernels=generic "output.dir=$scratch/agreed"
if grep -q '"absent"' "$scratch/agreed/ranks.json"; then fail "a rank is absent, though all can run these kernels"; fi
