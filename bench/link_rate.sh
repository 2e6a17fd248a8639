#!/usr/bin/env bash
# The rate of large frames between the server and ranks of other hosts, beside iperf3's over the same links, in turns
# (docs/measurements/hosts.md).
#
#   bash bench/link_rate.sh [RATE] [ROUNDS]      RATE as tc has it, default 1gbit, none: what the machine can; default: 3 rounds
#
# Hosts are network namespaces; needs root, iproute2 and iperf3 (Debian: iperf3), and build/release/bench/link_bench. Once with
# one host beside the server's, once with four: all links have RATE, so then the server's carries all. Prints medians and
# their ratio: out, back, and both at once (the sum of both). Exit code 3 where a ratio is below 0.85.
# Takes half a minute a round. Edit: nothing.
. "$(dirname "${BASH_SOURCE[0]}")/../tests/e2e/lib.sh"
. "$TOP/tests/hosts/hosts.sh"
PROGRAM=${LINK_BENCH:-$TOP/build/release/bench/link_bench}

link=${1:-1gbit} rounds=${2:-3} seconds=3 port=5201
command -v iperf3 > /dev/null || skip "no iperf3, which the rate is compared with"
[ -x "$PROGRAM" ] || { echo "no $PROGRAM; build it first: cmake --build build/release --target link_bench"; exit 1; }
end_iperf() { for number in 2 3 4 5; do ip netns pids "$host$number" 2> /dev/null | xargs -r kill 2> /dev/null || true; done; }
trap 'end_iperf; hosts_down; finish' EXIT
hosts_up_or_skip 5
[ "$link" = none ] || slow 5 "$link" || skip "no rates on links"
for number in 2 3 4 5; do
  on "$host$number" iperf3 -s -p "$port" > /dev/null 2>&1 &
done
sleep 0.5

# iperf WAY OTHERS: Gbit/s of payload received, both directions together.
iperf() {
  local option=() number clients=()
  case $1 in back) option=(-R) ;; both) option=(--bidir) ;; esac
  for ((number = 2; number <= 1 + $2; ++number)); do
    on "${host}1" iperf3 -c "$subnet.$number" -p "$port" -t "$seconds" -J "${option[@]}" > "$scratch/iperf.$number" &
    clients+=($!)
  done
  wait "${clients[@]}"
  python3 - $(seq -f "$scratch/iperf.%g" 2 $((1 + $2))) <<'PYTHON'
import json, sys
ends = [json.load(open(name))["end"] for name in sys.argv[1:]]
print(sum(end[key]["bits_per_second"] for end in ends
          for key in ("sum_received", "sum_received_bidir_reverse") if key in end) / 1e9)
PYTHON
}
# cleave WAY OTHERS
cleave() { launch_on_hosts $((1 + $2)) $((1 + $2)) "$PROGRAM" "$1" "$seconds" < /dev/null | awk '/Gbit/ { print $1 }'; }
median() { sort -g | awk '{ all[NR] = $1 } END { print NR % 2 ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'; }

worst=0
for others in 1 4; do
  for way in out back both; do
    : > "$scratch/theirs"
    : > "$scratch/ours"
    for ((round = 0; round < rounds; ++round)); do
      iperf "$way" "$others" >> "$scratch/theirs"
      cleave "$way" "$others" >> "$scratch/ours"
    done
    [ "$(wc -l < "$scratch/ours")" -eq "$rounds" ] || { echo "link_bench ended without a figure"; exit 1; }
    awk -v link="$link" -v others="$others" -v way="$way" -v ours="$(median < "$scratch/ours")" -v theirs="$(median < "$scratch/theirs")" 'BEGIN {
      printf "links of %s, %d other hosts, %-4s  %7.3f Gbit/s, iperf3 %7.3f Gbit/s, ratio %.3f\n", link, others, way, ours, theirs, ours / theirs
      exit ours / theirs < 0.85 ? 3 : 0 }' || worst=3
  done
done
exit "$worst"
