#!/usr/bin/env bash
# Installs what Cleave is built from, then builds it in build/release.
#
#   bash jobs/setup.sh [--packages-only] [--target NAME]... [--werror] [--with PACKAGE]...
#   bash jobs/setup.sh --libraries      name the packages of libraries, and do nothing
#
#   --packages-only   install, do not build
#   --target NAME     build only NAME (default: everything)
#   --werror          treat warnings as errors
#   --with PACKAGE    install one more Debian package
#
# Needs Debian 12 or later, or Ubuntu 22.04 or later; root (or sudo) only when a package is missing. On another system,
# or where the libraries come from modules or Spack, set CLEAVE_SKIP_PACKAGES=1 and it only builds.
# Takes 2 to 5 minutes the first time on 2 cores, a second or so when nothing has changed. A build/release that it makes
# is a unity build, in half the time; one that is there keeps its settings (docs/architecture.md, "Building").
# Edit: LIBRARIES or PACKAGES, when the build needs one more. CMAKE_PREFIX_PATH and CXX in your environment are obeyed.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LIBRARIES=(libopenmpi-dev libblis-openmp-dev libhdf5-dev libyaml-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev
  libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev)
PACKAGES=(g++ cmake ninja-build pkg-config openmpi-bin "${LIBRARIES[@]}")

say() { printf '\n== %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Prints those of its arguments that dpkg does not have installed; neither network nor root.
missing_packages() {
  local installed package
  installed=" $(dpkg-query -W -f '${Package}=${db:Status-Status} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    case "$installed" in *" $package=installed "*) ;; *) printf '%s\n' "$package" ;; esac
  done
}

install_packages() {
  [ "${CLEAVE_SKIP_PACKAGES:-0}" != 1 ] || return 0
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "No apt-get here: going on with what is installed. Needed (Debian's names): ${PACKAGES[*]}"
    return 0
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages "${PACKAGES[@]}")
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "these packages are missing and there is no sudo; as root, run:  apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${#missing[@]} packages: ${missing[*]}"
  # Package lists may be absent (a fresh container) or old (a name no longer on the mirror).
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
  "${as_root[@]}" apt-get update -q || say "apt-get update failed; trying with the package lists at hand"
  "${as_root[@]}" "${install[@]}" || die "apt-get could not install: ${missing[*]}"
}

build() {
  say "Building in build/release"
  local options=(-DCMAKE_BUILD_TYPE=Release) targets=()
  [ "$werror" = no ] || options+=(-DCLEAVE_WERROR=ON)
  cd "$TOP"
  local folder
  for folder in . build build/release; do
    [ ! -e "$folder" ] || [ -w "$folder" ] ||
      die "$TOP/$folder is not writable by $(id -un): was it made by another user (root)?"
  done
  # Headers of templates take most of the time, and the sources of a library share them.
  [ -e build/release/CMakeCache.txt ] || options+=(-DCMAKE_UNITY_BUILD=ON)
  if command -v ninja >/dev/null; then
    cmake --preset release "${options[@]}"
  else
    cmake -S . -B build/release "${options[@]}"
  fi
  [ "${#want[@]}" -eq 0 ] || targets=(--target "${want[@]}")
  cmake --build build/release --parallel "$(build_jobs)" "${targets[@]}"
}

# One compiler per core, but no more than memory carries at about 1 GiB each.
build_jobs() {
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  [ "$memory_gib" -ge 1 ] || memory_gib=1
  echo $((cores < memory_gib ? cores : memory_gib))
}

packages_only=no werror=no want=()
while [ $# -gt 0 ]; do
  case $1 in
    --packages-only) packages_only=yes ;;
    --libraries) printf '%s\n' "${LIBRARIES[@]}"; exit ;;
    --werror) werror=yes ;;
    --target) want+=("${2:?--target needs a name}"); shift ;;
    --with) PACKAGES+=("${2:?--with needs a package}"); shift ;;
    *) die "unknown option '$1' (see the head of jobs/setup.sh)" ;;
  esac
  shift
done

install_packages
[ "$packages_only" = yes ] || build
