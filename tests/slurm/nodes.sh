#!/usr/bin/env bash
# The batch scripts of jobs/slurm on a real Slurm of three nodes: network namespaces, each with a host name, an address and a
# slurmd of its own. A run over three nodes; one that loses a node; one over two nodes that is requeued at its time limit.
#
#   bash tests/slurm/nodes.sh        exit code 77: no Slurm, or no hosts, can be had here, and why
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$TOP/tests/slurm/slurm.sh"
. "$TOP/tests/hosts/hosts.sh"

# slurmd wants /sys/fs/cgroup, which ip would hide.
on() {
  local where=$1
  shift
  nsenter --net="/run/netns/$where" unshare --uts bash -c 'hostname "$1"; shift; exec "$@"' _ "$where" "$@"
}

if [ -z "${CLEAVE_NODES:-}" ]; then
  why=$(slurm_missing)
  [ -z "$why" ] || skip "$why"
  trap 'hosts_down; finish' EXIT
  trap 'exit 143' TERM INT
  hosts_up_or_skip 3
  # The rest runs on the first of them, as a user's shell on a cluster does.
  code=0
  on "${host}1" env CLEAVE_NODES="$host $subnet" bash "${BASH_SOURCE[0]}" || code=$?
  exit "$code"
fi
read -r host subnet <<< "$CLEAVE_NODES"

# What a lost node left is not Slurm's to end.
after_slurm() {
  local number
  for number in 2 3; do ip netns pids "$host$number" | xargs -r kill -KILL 2> /dev/null || true; done
}

write_input
# Slurm takes a node that is silent for so long for lost.
SLURMD_TIMEOUT=10
export CLEAVE CLEAVE_JOBS=$TOP/jobs OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
slurm_for_test "${host}1=$subnet.1" "${host}2=$subnet.2" "${host}3=$subnet.3"
cd "$scratch"

same_bits() { [ "$(hash_of "$scratch/$1" 6)" = "$wanted" ] || fail "$2: other bits than without Slurm"; }
idle_nodes() { sinfo --noheader --Node --states idle --format %N | sort -u | wc -l; }
all_idle() { [ "$(idle_nodes)" -eq 3 ]; }
# A node goes as one does that loses its power; and comes back.
lose() {
  cut_off "$host$1"
  ip netns pids "$host$1" | xargs -r kill -KILL
}
bring_back() {
  mend "$host$1"
  start_slurmd "$host$1"
  wait_for 60 all_idle || { sinfo --Node; fail "node $1 does not come back"; }
}
run=(train.steps=6 checkpoint.every=0)
slow=(fleet.clock=wall 'server.nic_in=4 MB/s') # gives the time to hit a run

expect_code 0 "without Slurm" "$CLEAVE" train input.yaml "${run[@]}" output.dir=alone
wanted=$(hash_of "$scratch/alone" 6)

# 1. Over three nodes.
submit_job --nodes=3 --ntasks=6 --ntasks-per-node=2 --time=5 --output="$scratch/three.log" "$TOP/jobs/slurm/train.sbatch" input.yaml "${run[@]}" output.dir=three
expect_completed 120 "three nodes" "$scratch/three.log"
[ "$(hosts_used three)" -eq 3 ] || { cat three/ranks.json; fail "the ranks were on $(hosts_used three) nodes, not 3"; }
same_bits three "three nodes"

# 2. A node dies that is not the batch script's: the job stays, and the run goes on, or is started again on what is left.
wait_for 30 all_idle || fail "the nodes are not idle"
submit_job --nodes=3 --ntasks-per-node=2 --time=5 --output="$scratch/survive.log" "$TOP/jobs/slurm/survive.sbatch" input.yaml \
  "${run[@]}" "${slow[@]}" checkpoint.every=1 output.dir=survive
wait_for 120 test -s survive/checkpoint-2.h5 || { cat "$scratch/survive.log"; fail "the run that is to lose a node does not start"; }
lose 3
expect_completed 180 "a node lost" "$scratch/survive.log"
same_bits survive "a node lost"
sed -n 's/^== /    a node lost: /p' "$scratch/survive.log"
bring_back 3

# 3. Over two nodes, requeued at its time limit.
wait_for 60 all_idle || fail "the nodes are not idle"
submit_job --nodes=2 --ntasks=4 --ntasks-per-node=2 --time=1 --signal=B:USR1@25 --output="$scratch/requeue.log" "$TOP/jobs/slurm/requeue.sbatch" \
  input.yaml "${run[@]}" fleet.clock=wall 'server.nic_in=800 kB/s' output.dir=requeue
expect_completed 300 "requeued" "$scratch/requeue.log"
grep -q 'ended with exit code 75' "$scratch/requeue.log" || fail "the run was never stopped by its limit"
same_bits requeue "requeued"
sed -n 's/^== /    requeued: /p' "$scratch/requeue.log"
