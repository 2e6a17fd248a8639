#!/usr/bin/env bash
# Trains under fire: kills, stops and continues device ranks at random moments, then compares the final parameters with
# those of an undisturbed run, bit for bit.
#
#   bash jobs/chaos.sh [RUNS] [--hosts N] [INPUT.yaml] [key=value ...]          e.g.  bash jobs/chaos.sh 10 --hosts 3
#   bash jobs/chaos.sh 30 plan.layout=stages                                    in stages, answers checked by second devices
#   bash jobs/chaos.sh 12 plan.layout=stages fleet.clock=off                    the same, as fast as the host can
#
# With --hosts the ranks are dealt to N hosts, made of network namespaces (tests/hosts/hosts.sh; needs root), and all hosts
# but the server's are cut off the network and mended, too. Then no process may be left on any of them.
# RUNS (default 3) disturbed runs, each with 4 to 8 device ranks of which all but one may die, and in every third run all. CHAOS_SEED=n repeats a
# sequence of decisions (their moments are real time and differ); CHAOS_LIMIT=s bounds one run (default 180).
# Prints a line per run; exit code 0 when every run was hit, ended with exit code 0 and the same bits, otherwise 3: a run
# that was over before anything happened to it shows nothing.
# Takes about 20 s a run with the default input, 40 steps of the quickstart. Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
# shellcheck source=jobs/mpi-env.sh
. "$TOP/jobs/mpi-env.sh"

runs=3 hosts=0
[[ ${1:-} =~ ^[0-9]+$ ]] && { runs=$1; shift; }
if [ "${1:-}" = --hosts ]; then
  [[ ${2:-} =~ ^[2-9]$ ]] || { echo "chaos: --hosts wants 2 to 9" >&2; exit 2; }
  hosts=$2
  shift 2
fi
work=$(mktemp -d)
overrides=(train.steps=40 train.eval_every=0 checkpoint.every=0 "fleet.patience=2 s")
if [[ ${1:-} == *.yaml ]]; then
  input=$1
  shift
else
  # The quickstart reads the project's own files: a copy, so that an editor at work does not change the text in between.
  input=$TOP/inputs/quickstart.yaml
  find "$TOP/docs" "$TOP/src" "$TOP/include" -type f \( -name '*.md' -o -name '*.?pp' \) | sort | xargs cat > "$work/text.txt"
  overrides+=("data.text=$work/text.txt")
fi
# What is within a stage cannot be sampled, as the quickstart asks for.
[[ " $* " == *" plan.layout=stages "* && " $* " != *" verify.mode="* ]] && overrides+=(verify.mode=auto)
overrides+=("$@")
RANDOM=${CHAOS_SEED:-$$}
limit=${CHAOS_LIMIT:-180}
# left: processes of all runs, on whatever host.
left() { pgrep -f "output.dir=$work/" || true; }
cleanup() {
  [ -n "${job:-}" ] && kill "$job" 2>/dev/null || true
  if [ "$hosts" -gt 0 ]; then
    left | xargs -r kill -KILL 2> /dev/null || true
    hosts_down
  fi
  rm -rf "$work"
}
if [ "$hosts" -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] && command -v ip > /dev/null || { echo "chaos: --hosts needs root and iproute2" >&2; exit 1; }
  scratch=$work
  # shellcheck source=tests/hosts/hosts.sh
  . "$TOP/tests/hosts/hosts.sh"
fi
trap cleanup EXIT
[ "$hosts" -eq 0 ] || hosts_up "$hosts" || { echo "chaos: no network namespaces here" >&2; exit 1; }
start() { # RANKS PROGRAM ARGUMENT...
  if [ "$hosts" -gt 0 ]; then launch_on_hosts "$hosts" "$@"; else launch "$@"; fi
}

# pid_of FOLDER RANK: from ranks.json, which the run writes before its first step.
pid_of() { grep -A1 "\"rank\": $2," "$1/ranks.json" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
hash_of() { "$CLEAVE" info --hash "$(find "$1" -name 'checkpoint-*.h5' | sort -V | tail -n 1)"; }

# living FOLDER RANK: its pid, if it runs (not gone, not a zombie, never a process group).
living() {
  local pid state
  pid=$(pid_of "$1" "$2")
  [ "${pid:-0}" -gt 1 ] || return 1
  state=$(sed 's/.*) \(.\).*/\1/' "/proc/$pid/stat" 2> /dev/null) && [ "${state:-Z}" != Z ] && echo "$pid"
}

SECONDS=0
"$CLEAVE" train "$input" --quiet "${overrides[@]}" output.dir="$work/calm" > "$work/log0" 2>&1 ||
  { code=$?; tail -n 5 "$work/log0" >&2; echo "chaos: the undisturbed run ended with exit code $code" >&2; exit 3; }
expected=$(hash_of "$work/calm")
echo "undisturbed: parameters $expected"
# Between two deeds passes a tenth of a second or up to nine, and less where the whole run is short.
beat=$((SECONDS < 10 ? 1 + SECONDS : 10))

failed=0
for ((run = 1; run <= runs; run++)); do
  ranks=$((5 + RANDOM % 5))
  folder=$work/run$run
  SECONDS=0
  (start "$ranks" timeout -k 5 "$limit" "$CLEAVE" train "$input" --quiet "${overrides[@]}" output.dir="$folder" > "$work/log$run" 2>&1) &
  job=$!
  until [ -s "$folder/ranks.json" ] || ! kill -0 "$job" 2>/dev/null; do sleep 0.1; done
  deeds=
  stopped=
  declare -A away=()
  faults=0
  alive=$((ranks - 1))
  spare=$((run % 3 > 0))
  for ((deed = 0; deed < 4 + (spare ? 0 : 12) + RANDOM % 6; deed++)); do
    # The first deed comes while the server is held, however fast the run is.
    server=
    if [ "$deed" -eq 0 ]; then
      server=$(living "$folder" 0) && kill -STOP "$server" || server=
    else
      sleep "$(printf '0.%03d' $(((1 + RANDOM % 9) * 10 * beat)))"
    fi
    kill -0 "$job" 2>/dev/null || break
    victim=$((1 + RANDOM % (ranks - 1)))
    pid=$(living "$folder" "$victim") || pid=
    kind=$((deed > 0 ? RANDOM % (hosts > 0 ? 5 : 3) : 0))
    [ "$deed" -ne 1 ] || [ "$hosts" -eq 0 ] || kind=3
    case $kind in
      0) [ -n "$pid" ] && [ "$alive" -gt "$spare" ] && kill -KILL "$pid" 2>/dev/null && { deeds+=" kill:$victim"; alive=$((alive - 1)); faults=$((faults + 1)); } ;;
      1) [ -n "$pid" ] && kill -STOP "$pid" 2>/dev/null && { deeds+=" stop:$victim"; stopped+=" $pid"; faults=$((faults + 1)); } ;;
      2) for pid in $stopped; do kill -CONT "$pid" 2>/dev/null && deeds+=" cont"; done; stopped= ;;
      3) number=$((2 + RANDOM % (hosts - 1))) && [ -z "${away[$number]:-}" ] && cut_off "$host$number" && { away[$number]=yes; deeds+=" cut:$number"; faults=$((faults + 1)); } ;;
      4) for number in "${!away[@]}"; do mend "$host$number" && deeds+=" mend:$number"; done; away=() ;;
    esac || true
    [ -z "$server" ] || kill -CONT "$server" 2>/dev/null || true
  done
  status=0
  wait "$job" || status=$?
  job=
  took=$SECONDS
  got=$([ "$status" -eq 0 ] && hash_of "$folder" || echo none)
  verdict=same
  [ "$faults" -gt 0 ] || { verdict="NOTHING HAPPENED TO IT"; failed=$((failed + 1)); }
  [ "$status" -eq 0 ] && [ "$got" = "$expected" ] || { verdict=DIFFERENT; failed=$((failed + 1)); tail -n 5 "$work/log$run"; }
  for number in "${!away[@]}"; do mend "$host$number"; done
  if [ "$hosts" -gt 0 ]; then
    # Nobody kills a stopped process of another host but that host's part of mpirun, and that may have been cut off.
    for pid in $stopped; do kill -CONT "$pid" 2>/dev/null || true; done
    for ((i = 0; i < 600; i++)); do [ -n "$(left)" ] || break; sleep 0.1; done
    [ -z "$(left)" ] || { verdict="PROCESSES ARE LEFT"; failed=$((failed + 1)); left | xargs -r kill -KILL 2> /dev/null || true; }
  fi
  printf 'run %d: %d device ranks,%s: exit %d after %d s, parameters %s, %s\n' "$run" "$((ranks - 1))" "${deeds:- no deed}" "$status" "$took" "$got" "$verdict"
done
[ "$failed" -eq 0 ] || { echo "$failed of $runs runs failed"; exit 3; }
echo "all $runs runs were hit and ended with the same bits"
