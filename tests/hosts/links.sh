#!/usr/bin/env bash
# Under the wall clock, over three hosts whose links carry the emulated traffic, real time is within 5 % of the model's, and
# each host's part in what it is late is told. Links carry 10 Gbit/s, or 100 Mbit/s with 20 ms.
#
#   bash tests/hosts/links.sh       needs FAR_LINK, the built tests/hosts/far_link
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

trap 'hosts_down; finish' EXIT
far_links_or_skip
write_input  # and the text that the inputs below name

# in_real_time LINK DOWNLINK UPLINK LATENCY: three hosts, a device rank on each.
in_real_time() {
  local link=$1 down=$2 up=$3 latency=$4
  sed "s/@down/$down/; s/@up/$up/; s/@latency/$latency/" > "$scratch/$link.yaml" <<'YAML'
model: {family: gpt2, n_layer: 2, n_head: 4, d_model: 128, vocab_size: 256, seq_len: 64}
data: {text: text, tokenizer: byte}
train: {steps: 2, batch: 8}
fleet:
  clock: wall
  devices:
    - {name: phone, count: 6, compute: 1 GFLOP/s, memory: 64 MB, downlink: @down, uplink: @up, latency: @latency}
server: {nic_out: 1 Gbit/s, nic_in: 1 Gbit/s}
YAML
  hosts_with_links 3 "$link" || { fail "in real time, $link: no hosts"; exit 1; }
  expect_code 0 "in real time, $link" launch_on_hosts 3 4 "$CLEAVE" train "$scratch/$link.yaml" --quiet checkpoint.every=0 "output.dir=$scratch/real-$link"
  hosts_down
  python3 - "$scratch/real-$link" "$link" <<'PYTHON' || fail "in real time, $link"
import json, sys
steps = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
modelled = sum(s["time_s"] for s in steps)
late = lambda value: sum((value(s) - 1) * s["time_s"] for s in steps) / modelled
hosts = sorted(steps[0]["dilation_by_host"])
dilation = 1 + late(lambda s: s["dilation"])
parts = {host: 1 + late(lambda s: s["dilation_by_host"][host]) for host in hosts}
print(f"in real time, {sys.argv[2]}: {modelled:.2f} s of the model dilated by {dilation:.4f}; by host", {h: round(p, 4) for h, p in parts.items()})
whole = abs(sum(p - 1 for p in parts.values()) - (dilation - 1)) < 1e-6
sys.exit(0 if dilation <= 1.05 and len(hosts) == 3 and whole else 1)
PYTHON
}
in_real_time near '10 MB\/s' '4 MB\/s' '5 ms'
# Six phones of these rates fill half of a link of 100 Mbit/s.
in_real_time far '1 MB\/s' '500 kB\/s' '60 ms'
