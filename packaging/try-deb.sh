#!/usr/bin/env bash
# Installs the Debian package in a bare Debian 12 of its own, with what it depends on, and runs it there as a user would.
#
#   bash packaging/try-deb.sh [BUILD_FOLDER]
#
# Needs root, debootstrap and a mirror (the one apt has here). The Debian lives in a folder under /tmp and is removed
# at the end, so that nothing that the package forgets to depend on can come from this machine.
# Takes about 3 minutes. Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$(cd "${1:-$TOP/build/release}" && pwd)
[ "$(id -u)" -eq 0 ] || { echo "try-deb: needs root" >&2; exit 1; }
command -v debootstrap > /dev/null || { echo "try-deb: needs debootstrap" >&2; exit 1; }
work=$(mktemp -d /tmp/cleave-deb.XXXXXX)
root=$work/root
cleanup() {
  umount "$root/proc" 2> /dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

(cd "$BUILD" && cpack -G DEB -B "$work/packages" > "$work/cpack.log") || { cat "$work/cpack.log"; exit 1; }
mirror=$(apt-cache policy | grep -Eo 'https?://[^ ]+' | grep -v security | head -n 1)
echo "== A bare Debian 12 from $mirror"
debootstrap --variant=minbase bookworm "$root" "$mirror" > "$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log"; exit 1; }
mount -t proc proc "$root/proc"
for file in /etc/apt/apt.conf.d/*prox* /etc/resolv.conf /etc/hosts; do [ ! -e "$file" ] || cp "$file" "$root/$file"; done
cp "$work"/packages/cleave_*.deb "$root/tmp/cleave.deb"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
echo "== apt-get install ./cleave.deb"
inside apt-get update -q > "$work/apt.log" 2>&1
inside apt-get install -y -q --no-install-recommends /tmp/cleave.deb >> "$work/apt.log" 2>&1 || { tail -n 20 "$work/apt.log"; exit 1; }
inside dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Status}\n' cleave
echo "== cleave from the path"
inside cleave --version
printf 'the quick brown fox jumps over the lazy dog\n%.0s' $(seq 200) > "$root/tmp/fox.txt"
cat > "$root/tmp/input.yaml" <<'YAML'
model: {family: gpt2, n_layer: 1, n_head: 2, d_model: 32, seq_len: 32}
data: {text: fox.txt}
train: {steps: 3, batch: 4}
fleet: {devices: [{name: phone, count: 4, compute: 1 TFLOP/s, memory: 512 MiB, downlink: 80 Mbit/s, uplink: 40 Mbit/s}]}
output: {dir: run}
YAML
inside bash /usr/share/cleave/jobs/run.sh /tmp/input.yaml 3 --quiet
inside cleave info /tmp/run/checkpoint-3.h5 | head -n 3
echo "== good"
