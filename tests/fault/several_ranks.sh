#!/usr/bin/env bash
# The n-th call of mmap or eventfd fails in the server or in a device rank of a run of three ranks: the run ends within a
# minute, with its own bits or with another exit code and a reason, and what it leaves can be gone on from.
#
#   bash tests/fault/several_ranks.sh [TRIES]   so many n of each kind in each rank, spread over all; default: every n
#   CLEAVE=/path/to/cleave CALLS=/path/to/libfault_calls.so (of the build in build/release, if not said)
set -euo pipefail

tries=${1:-1000000}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CLEAVE=${CLEAVE:-$here/../../build/release/cleave}
CALLS=${CALLS:-$here/../../build/release/tests/fault/libfault_calls.so}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib.sh
. "$here/lib.sh"
# shellcheck source=../../jobs/mpi-env.sh
. "$here/../../jobs/mpi-env.sh"
write_small_input 6 9
fail() { echo "$1"; cat "$work/log"; exit 1; }
hash_of() { "$CLEAVE" info --hash "$work/run/checkpoint-6.h5"; }

# train VARIABLE=VALUE ... -- ARGUMENT ...: a run of three ranks in $work/run; what it ends with is in $status. A hang is
# ended by timeout, with 124. Only the program itself gets the variables. A start that stands still must end by
# itself, and soon, so that this test does.
export CLEAVE_START_LIMIT=20
status=0
train() {
  local variables=()
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  status=0
  (launch 3 timeout -k 5 60 env "${variables[@]}" "$CLEAVE" train "$work/input.yaml" --quiet fleet.patience=5s \
    output.dir="$work/run" "$@") > "$work/log" 2>&1 < /dev/null || status=$?
}

# try KIND ERRNO RANK N: calls.hpp has the names of kinds.
try() {
  local what="call $4 of $1 in rank $3"
  rm -rf "$work/run" "$work/note"
  train "LD_PRELOAD=$CALLS" "CLEAVE_FAULT=$1:$4:$2" "CLEAVE_FAULT_RANK=$3" "CLEAVE_FAULT_NOTE=$work/note" --
  [ -e "$work/note" ] || return 0 # calls differ a little from run to run
  tried=$((tried + 1))
  case $status in
    0)
      survived=$((survived + 1))
      [ "$(hash_of)" = "$expected" ] || fail "$what: other parameters"
      return 0
      ;;
    124 | 137) fail "$what: it hangs" ;;
    4) fail "$what: a bug" ;;
  esac
  [ "$status" -lt 128 ] || fail "$what: exit code $status"
  grep -q . "$work/log" || fail "$what: exit code $status without a word"
  cp "$work/log" "$work/said"
  train -- --resume auto
  [ "$status" -eq 0 ] || { cat "$work/said"; fail "after $what it does not go on"; }
  [ "$(hash_of)" = "$expected" ] || fail "after $what: other parameters"
}

for rank in 0 1; do
  rm -rf "$work/run"
  train "LD_PRELOAD=$CALLS" "CLEAVE_FAULT_RANK=$rank" "CLEAVE_FAULT_NOTE=$work/calls" --
  [ "$status" -eq 0 ] || fail "an undisturbed run ended with exit code $status"
  expected=$(hash_of)
  for kind in event:24 map:12; do # EMFILE, ENOMEM
    count=$(sed -n "s/.*${kind%:*}:\([0-9]*\).*/\1/p" "$work/calls")
    [ "${count:-0}" -gt 0 ] || fail "rank $rank makes no call of ${kind%:*}: nothing to make fail"
    tried=0 survived=0
    some=$((tries < count ? tries : count))
    for ((i = 0; i < some; i++)); do
      try "${kind%:*}" "${kind#*:}" "$rank" $(((2 * i + 1) * count / (2 * some) + 1))
    done
    [ "$tried" -gt 0 ] || fail "${kind%:*} in rank $rank: no fault was injected"
    echo "${kind%:*}, rank $rank: $tried of $count calls made to fail, $survived survived"
  done
done
