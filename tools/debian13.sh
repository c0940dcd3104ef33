#!/bin/sh
# Runs make targets on Debian 13, where R, reticulate, Python and NumPy are newer:
#
#     tools/debian13.sh TARGET...
#     tools/debian13.sh --can       # says in one sentence why it could not, or nothing
#
# Debian 13 lives in the folder .debian13, which debootstrap makes once (a minute, and
# 3 GB with what the targets install).  The tree is copied into it; nothing comes back.
# Takes root on a Debian or Ubuntu that may mount and chroot.
set -eu
cd "$(dirname "$0")/.."

root=$PWD/.debian13
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

speaker="Debian 13"
. tools/speak.sh

# ---- Whether this computer can -------------------------------------------------

why_not() {
    if [ "$(id -u)" != 0 ]; then
        echo "only root may make and enter its root folder"
    elif ! command -v apt-get >/dev/null && ! command -v debootstrap >/dev/null; then
        echo "debootstrap is missing, and there is no apt-get to install it"
    elif ! unshare --mount --pid --fork true 2>/dev/null; then
        echo "this computer does not let root mount folders"
    fi
}

reason=$(why_not)
if [ "${1:-}" = --can ]; then
    if [ -n "$reason" ]; then stop "not run here: $reason."; fi
    exit 0
fi
[ $# -gt 0 ] || stop "name one target of make at least."
if [ -n "$reason" ]; then stop "$reason."; fi

# ---- The root folder -------------------------------------------------------------

if ! command -v debootstrap >/dev/null; then
    say "installing debootstrap ..."
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update
    quietly apt-get install --yes --no-install-recommends debootstrap debian-archive-keyring
fi

# Renamed only when complete: a folder that was interrupted is made anew.
if [ ! -e "$root" ]; then
    say "making its root folder .debian13 ..."
    rm -rf "$root.new"
    quietly debootstrap --variant=minbase --include=ca-certificates,make trixie \
        "$root.new" "$mirror"
    mv "$root.new" "$root"
fi

# What this computer trusts and asks, for networks that have a certificate of their own.
for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf; do
    if [ -e $file ]; then cp -L $file "$root$file"; fi
done

# ---- The tree, without what other runs made ---------------------------------------

home=$root/root/gpukeras
mkdir -p "$home"
find "$home" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .rlib -exec rm -rf {} +
tar -cf - --exclude './.venv*' --exclude ./.rlib --exclude ./.git --exclude './.debian13*' . |
    tar -xf - -C "$home"

# ---- The targets ---------------------------------------------------------------------

# The mounts and processes end with their namespaces, also where a test leaves some behind.
# shellcheck disable=SC2016 # expanded by the shell inside
exec unshare --mount --pid --fork --kill-child sh -eu -c '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
        make --no-print-directory -C /root/gpukeras "$@"
' sh "$root" "$@"
