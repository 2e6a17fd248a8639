#!/usr/bin/env bash
# Cross-compiles for 64-bit Arm, then runs the unit tests and a few steps of training under QEMU.
#
#   bash jobs/arm.sh [CTest argument ...]     e.g.  bash jobs/arm.sh -R kernels
#
# Without arguments all unit tests but those of components that only simulate, which take long, and three that QEMU cannot
# run: it has no limit of address space (base.kept_memory), takes build/arm/root for the root of the file system
# (data.text), and is too slow for a time limit (pieces.stage_worker).
#
# Everything goes to build/arm: Debian's Arm packages, unpacked and not installed; the program; its tests. Needs Debian
# 12, root (or sudo) for the compiler and QEMU, and Linux's binfmt_misc, by which an Arm program is started like any
# other: where QEMU is not registered there, it is registered for as long as this runs.
# Takes a quarter of an hour on 2 cores the first time; an emulated processor is ten to fifty times slower than this one.
# Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$TOP/build/arm
ROOT=$BUILD/root
LIBRARIES=/usr/lib/aarch64-linux-gnu
FORMATS=/proc/sys/fs/binfmt_misc
mapfile -t PACKAGES < <(printf '%s\n' libc6-dev libstdc++-12-dev; bash "$TOP/jobs/setup.sh" --libraries)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'arm: %s\n' "$*" >&2; exit 1; }

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "this needs root, and there is no sudo"
  as_root=(sudo)
fi

# Debian's Arm packages and all that they need, beside this system: its package lists and packages stay as they are.
unpack_packages() {
  [ ! -e "$ROOT/complete" ] || return 0
  say "Fetching Debian's packages for Arm"
  mkdir -p "$BUILD/lists/partial" "$BUILD/packages/partial" "$ROOT"
  : > "$BUILD/status"
  local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=false
    -o Dir::State::status="$BUILD/status" -o Dir::State::lists="$BUILD/lists" -o Dir::Cache::archives="$BUILD/packages"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=true -o APT::Sandbox::User=root)
  "${apt[@]}" update
  "${apt[@]}" -y --download-only install "${PACKAGES[@]}" || die "these packages cannot be had for Arm here"
  local package
  for package in "$BUILD"/packages/*.deb; do dpkg -x "$package" "$ROOT"; done
  touch "$ROOT/complete"
}

# What this script has registered it takes back.
register_qemu() {
  [ -e "$FORMATS/register" ] || "${as_root[@]}" mount -t binfmt_misc binfmt_misc "$FORMATS" ||
    die "this kernel has no binfmt_misc"
  [ ! -e "$FORMATS/qemu-aarch64" ] || return 0
  local qemu magic mask
  qemu=$(command -v qemu-aarch64)
  magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":qemu-aarch64:M::$magic:$mask:$qemu:F" | "${as_root[@]}" tee "$FORMATS/register" > /dev/null
  trap 'printf %s -1 | "${as_root[@]}" tee "$FORMATS/qemu-aarch64" > /dev/null' EXIT
}

bash "$TOP/jobs/setup.sh" --packages-only --with g++-aarch64-linux-gnu --with qemu-user
unpack_packages
say "Building in build/arm"
[ -e "$BUILD/CMakeCache.txt" ] ||
  cmake -S "$TOP" -B "$BUILD" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$TOP/jobs/arm.cmake" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_UNITY_BUILD=ON
cmake --build "$BUILD" --parallel "$(nproc)" --target cleave unit_tests

register_qemu
# shellcheck source=mpi-env.sh
. "$TOP/jobs/mpi-env.sh"
export QEMU_LD_PREFIX=$ROOT OMPI_MCA_btl=self,tcp  # processes that are emulated do not read each other's memory
export QEMU_SET_ENV=LD_LIBRARY_PATH=$LIBRARIES/blis-openmp:$LIBRARIES/openmpi/lib:$LIBRARIES/hdf5/serial

say "Training: one rank, then a server and two device ranks, in both layouts"
"$BUILD/cleave" --version
rm -rf "$BUILD/runs"
hash=
for run in "1 tiles" "3 tiles" "3 stages"; do
  read -r ranks layout <<< "$run"
  folder=$BUILD/runs/$ranks-$layout
  launch "$ranks" "$BUILD/cleave" train "$TOP/inputs/quickstart.yaml" --quiet train.steps=3 train.eval_every=0 \
    verify.mode=off "plan.layout=$layout" "output.dir=$folder"
  got=$("$BUILD/cleave" info --hash "$folder/checkpoint-3.h5")
  echo "$ranks ranks, $layout: $got"
  [ "$got" = "${hash:=$got}" ] || die "$ranks ranks in $layout have other bits than $hash"
done

say "Testing"
[ $# -gt 0 ] || set -- -L unit -E '^(plan|sched|rivals|simulation)\.|^(base\.kept_memory|data\.text|pieces\.stage_worker)$'
ctest --test-dir "$BUILD" --output-on-failure --no-tests=error --timeout 1500 -j "$(nproc)" "$@"
