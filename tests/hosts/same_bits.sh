#!/usr/bin/env bash
# Runs over 2, 3 and 5 hosts, with links of 10 Gbit/s, of 100 Mbit/s and 20 ms, and where devices cannot reach each other:
# each ends with the bits of a run on one host.
#
#   bash tests/hosts/same_bits.sh      needs FAR_LINK, the built tests/hosts/far_link
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

trap 'hosts_down; finish' EXIT
far_links_or_skip

# reaches FROM TO: a host refuses where nobody listens.
reaches() {
  local answer
  answer=$(on "$host$1" timeout 2 bash -c ": < /dev/tcp/$subnet.$2/9" 2>&1 || true)
  [[ $answer == *refused* ]]
}

write_input
run=(train.steps=3 train.eval_every=0 checkpoint.every=0)
expect_code 0 "one host" "$CLEAVE" train "$scratch/input.yaml" "${run[@]}" "output.dir=$scratch/one"
wanted=$(hash_of "$scratch/one" 3)
for case in "2 near" "2 far" "3 near" "3 far" "5 near" "5 apart" "5 far"; do
  read -r number link <<< "$case"
  hosts_with_links "$number" "$link" || { fail "$case: no hosts"; exit 1; }
  reaches 2 1 || fail "$case: host 2 does not reach the first"
  case $case in
    *apart) ! reaches 2 3 || fail "$case: host 2 reaches host 3" ;;
    3* | 5*) reaches 2 3 || fail "$case: host 2 does not reach host 3" ;;
  esac
  began=$SECONDS
  expect_code 0 "$case" launch_on_hosts_within 120 "$number" $((number + 1)) "$CLEAVE" train "$scratch/input.yaml" "${run[@]}" "output.dir=$scratch/$number-$link"
  [ "$(hosts_used "$scratch/$number-$link")" -eq "$number" ] || fail "$case: $(hosts_used "$scratch/$number-$link") hosts"
  [ "$(hash_of "$scratch/$number-$link" 3)" = "$wanted" ] || fail "$case: other bits than on one host"
  echo "$number hosts, $link: $((SECONDS - began)) s"
  hosts_down
done
