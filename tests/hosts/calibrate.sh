#!/usr/bin/env bash
# calibrate over three hosts, one of which has a slow link and one a lesser processor: it prints the rates that the links have,
# and warns of both.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

trap 'hosts_down; finish' EXIT
hosts_up_or_skip 3
slow_host 2 1gbit && slow_host 3 40mbit || skip "no rates on links"

make_unlike "$scratch/program"

# between LABEL VALUE LEAST MOST
between() { awk -v value="$2" -v least="$3" -v most="$4" 'BEGIN { exit !(value >= least && value <= most) }' || fail "$1: $2, not $3 to $4"; }
# rate_of RANK FIELD: in MB/s, there (1) or back (2), or each way at once (3).
rate_of() {
  grep "^# rank $1 on " "$scratch/fleet.yaml" | grep -Eo '[0-9.]+ [kMG]?B/s' | sed -n "$2p" |
    awk '{ print $1 * ($2 == "GB/s" ? 1000 : $2 == "MB/s" ? 1 : $2 == "kB/s" ? 1e-3 : 1e-6) }'
}

# A server, and a rank on each of the other hosts and on its own.
expect_code 0 "calibrate" launch_on_hosts 3 4 "$scratch/program" calibrate -o "$scratch/fleet.yaml"
cat "$scratch/fleet.yaml"
for number in 1 2 3; do grep -q "^# host $host$number: .* cores, .* kernels; .* on one core" "$scratch/fleet.yaml" || fail "nothing of host $number"; done
# What TCP leaves of a link: Ethernet's, IP's and its own headers take 6 %; a bucket of 256 kB is lent at the beginning.
for field in 1 2; do
  between "the rate of 1 Gbit/s, field $field" "$(rate_of 1 $field)" 80 128
  between "the rate of 40 Mbit/s, field $field" "$(rate_of 2 $field)" 4 5.6
done
expect_text "a slow link" "warning: the link to rank 2 on ${host}3 carries .*, less than Gigabit Ethernet"
if grep -q "^# warning: the link to rank 1 .*Gigabit" "$scratch/fleet.yaml"; then fail "a link of 1 Gbit/s is called slow"; fi
grep -q '^# rank 3 .*; shares memory with the server' "$scratch/fleet.yaml" || fail "the rank of the server's host shares no memory"
if grep -q '^# rank [12] .*shares memory' "$scratch/fleet.yaml"; then fail "a rank of another host shares memory"; fi
{
  echo 'model: {family: gpt2, n_layer: 1, n_head: 1, d_model: 32}'
  cat "$scratch/fleet.yaml"
} > "$scratch/study.yaml"
expect_code 0 "the fragment is an input" "$CLEAVE" simulate "$scratch/study.yaml"

if "$CLEAVE" --version | grep -q 'generic'; then
  echo "not tried: warnings of processors that differ, for this one has nothing to hide"
  exit 0
fi
grep -q "^# host ${host}2: .* generic kernels" "$scratch/fleet.yaml" || fail "the lesser processor's kernels"
grep -q "^# warning: host ${host}2 .*cannot run .* kernels.*server.gemm_kernels=generic" "$scratch/fleet.yaml" || fail "no warning of kernels"
