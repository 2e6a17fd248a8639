# shellcheck shell=bash
# Several hosts on one machine: network namespaces on a bridge, each with a host name and an address of its own, so that
# ranks of different hosts speak TCP, and a host can be taken off the network. Sourced; needs root and iproute2.
#
#   hosts_up N          makes N hosts, ${host}1 .. ${host}N
#   hosts_up_or_skip N  the same in a test that sources tests/e2e/lib.sh, which is skipped where no hosts can be made
#   far_links_or_skip   skips such a test where distant() cannot be had; takes the built far_link where FAR_LINK is not set
#   hosts_down          removes them; call it from a trap
#   on HOST COMMAND...  runs a command with the host's network and name
#   cut_off HOST, mend HOST takes a host off the network, or back
#   slow_host I RATE    lets host I send and receive at no more than RATE, as tc has it (400mbit); slow N RATE all N hosts
#   hosts_with_links N near|far|apart   makes N hosts with links of 10 Gbit/s, or of 100 Mbit/s and 20 ms: a host's own link has
#                       half of the way's delay. apart: as near, but no host reaches another, except the first
#   distant N BITS MS   gives each of N hosts a link of so many bits a second and that delay, either way; needs $FAR_LINK
#   make_unlike FILE    writes a script that runs $CLEAVE; on host 2 as if its processor were the first x86-64
#   launch_on_hosts N RANKS PROGRAM ARGUMENT...   launch() of jobs/mpi-env.sh from the first host, ranks dealt to hosts in turn
#   launch_on_hosts_within SECONDS N RANKS ...    the same, ended after so long
#   hosts_used FOLDER   on how many hosts the ranks of a run were, by its ranks.json

# Names and subnet of this process: two tests may run at once. Interfaces' names hold 15 characters.
host=h$$n
subnet=10.$((64 + $$ / 250 % 64)).$(($$ % 250))
far_links=()

on() {
  local where=$1
  shift
  ip netns exec "$where" unshare --uts bash -c 'hostname "$1"; shift; exec "$@"' _ "$where" "$@"
}

hosts_up() {
  local i
  ip link add "$host" type bridge && ip link set "$host" up || return
  for ((i = 1; i <= $1; ++i)); do
    ip netns add "$host$i" && ip link add "$host-$i" type veth peer name eth0 netns "$host$i" &&
      ip link set "$host-$i" master "$host" up && ip netns exec "$host$i" ip addr add "$subnet.$i/24" dev eth0 &&
      ip netns exec "$host$i" ip link set eth0 up && ip netns exec "$host$i" ip link set lo up || return
  done
}

hosts_up_or_skip() {
  [ "$(id -u)" -eq 0 ] || skip "making hosts of network namespaces needs root"
  command -v ip > /dev/null || skip "making hosts needs iproute2"
  hosts_up "$1" 2> "$scratch/why" || skip "no network namespaces: $(tail -n 1 "$scratch/why")"
}

far_links_or_skip() {
  FAR_LINK=${FAR_LINK:-$TOP/build/release/tests/hosts/far_link}
  [ -e /dev/net/tun ] || skip "no /dev/net/tun, of which long links are made"
  hosts_up_or_skip 1
  hosts_down
}

hosts_down() {
  local name
  for name in $(ip netns list | awk -v host="$host" 'index($1, host) == 1 { print $1 }'); do
    # The kernel keeps a namespace until its last connection has timed out; its link need not stay as long.
    ip link del "$host-${name#"$host"}" 2> /dev/null || true
    ip netns del "$name"
  done
  ip link del "$host" 2> /dev/null || true
  [ "${#far_links[@]}" -eq 0 ] || kill "${far_links[@]}" 2> /dev/null || true
  far_links=() # their numbers may be another process's by the next time
}

cut_off() { ip netns exec "$1" ip link set eth0 down; }
mend() { ip netns exec "$1" ip link set eth0 up; }

slow_host() {
  tc qdisc add dev "$host-$1" root tbf rate "$2" burst 256kb latency 50ms &&
    ip netns exec "$host$1" tc qdisc add dev eth0 root tbf rate "$2" burst 256kb latency 50ms
}

slow() {
  local i
  for ((i = 1; i <= $1; ++i)); do slow_host "$i" "$2" || return; done
}

# The kernel's own delay (netem) is missing from many; a process carries the frames instead.
distant() {
  local i pipe
  for ((i = 1; i <= $1; ++i)); do
    ip link del "$host-$i" || return
    exec {pipe}< <(exec "$FAR_LINK" "$host-$i" "${host}x$i" "$2" "$3")
    far_links+=($!)
    read -r -u "$pipe" || return
    ip link set "$host-$i" master "$host" up && ip link set "${host}x$i" netns "$host$i" &&
      ip netns exec "$host$i" ip link set "${host}x$i" name eth0 && ip netns exec "$host$i" ip addr add "$subnet.$i/24" dev eth0 &&
      ip netns exec "$host$i" ip link set eth0 up || return
  done
  know_each_other "$1"
}

# Which interface has an address is written down: on a busy machine a question may wait for a process that carries it for
# longer than the kernel goes on asking, and then a host counts as unreachable.
know_each_other() {
  local i j of
  for ((i = 1; i <= $1; ++i)); do
    of=$(ip netns exec "$host$i" cat /sys/class/net/eth0/address) || return
    for ((j = 1; j <= $1; ++j)); do
      [ "$i" -eq "$j" ] || ip netns exec "$host$j" ip neigh replace "$subnet.$i" lladdr "$of" dev eth0 nud permanent || return
    done
  done
}

hosts_with_links() {
  hosts_up "$1" || return
  case $2 in
    near) slow "$1" 10gbit ;;
    far) distant "$1" 100e6 10 ;;
    apart) slow "$1" 10gbit && keep_apart "$1" ;;
  esac
}

keep_apart() {
  local i
  for ((i = 2; i <= $1; ++i)); do ip link set dev "$host-$i" type bridge_slave isolated on || return; done
}

make_unlike() {
  cat > "$1" <<SCRIPT
#!/bin/bash
case \$(hostname) in ${host}2) export CLEAVE_INSTRUCTIONS=baseline; . "$TOP/jobs/mpi-env.sh" ;; esac
exec "$CLEAVE" "\$@"
SCRIPT
  chmod +x "$1"
}

launch_on_hosts() {
  local count=$1 folder i
  shift
  folder=$(mktemp -d "$scratch/hosts.XXXXXX")
  # mpirun reaches a host by its address, as `agent HOST COMMAND...`, like ssh.
  {
    printf '#!/bin/bash\nwhere=%s${1##*.}; shift\n' "$host"
    printf 'exec ip netns exec "$where" unshare --uts bash -c '\''hostname "$1"; shift; exec bash -c "$*"'\'' _ "$where" "$@"\n'
  } > "$folder/agent"
  chmod +x "$folder/agent"
  for ((i = 1; i <= count; ++i)); do echo "$subnet.$i slots=64"; done > "$folder/hostfile"
  on "${host}1" env OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$folder/agent" OMPI_MCA_orte_default_hostfile="$folder/hostfile" \
    OMPI_MCA_rmaps_base_mapping_policy=node OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 \
    bash -c '. "$1/jobs/mpi-env.sh"; shift; launch "$@"' _ "$TOP" "$@"
}

launch_on_hosts_within() {
  local seconds=$1
  shift
  timeout "$seconds" bash -c "$(declare -f launch_on_hosts on)"'
    TOP=$1 scratch=$2 host=$3 subnet=$4; shift 4; launch_on_hosts "$@"' _ "$TOP" "$scratch" "$host" "$subnet" "$@"
}

hosts_used() { sed -n 's/.*"host": "\([^"]*\)".*/\1/p' "$1/ranks.json" | sort -u | wc -l; }
