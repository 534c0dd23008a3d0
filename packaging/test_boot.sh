#!/usr/bin/env bash
# Does the service live in a real system? Boots a Debian with its own systemd, installs llmhostd there as INSTALL.md
# says, word for word, asks a model something, kills the daemon, and stops it.
#
#   sudo packaging/test_boot.sh [DIRECTORY]     takes some minutes the first time; keeps its Debian in DIRECTORY
#
# Needs root, and debootstrap and systemd-nspawn (apt install debootstrap systemd-container).
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-/var/tmp/llmhostd-boot}
root=$work/root
wheels=$work/wheels
python=${PYTHON:-python3}

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    inside journalctl -u llmhostd --no-pager -n 50 >&2 || true
    exit 1
}

# Runs a command in the booted system. Its init is the only child of systemd-nspawn.
inside() { nsenter --target "$(pgrep --parent "$nspawn" | head -1)" --all -- "$@"; }

wait_for() {
    local what=$1 seconds=$2
    shift 2
    for _ in $(seq "$((seconds * 5))"); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    fail "$what, after $seconds s"
}

ready() { inside curl --silent --fail http://127.0.0.1:11500/readyz; }

main_pid() { inside systemctl show llmhostd --property MainPID --value; }

say "Wheels of llmhostd's dependencies, so that the booted system needs no network"
mkdir -p "$wheels"
(cd "$source_dir" && "$python" -m pip wheel --quiet --wheel-dir "$wheels" . hatchling)
rm -f "$wheels"/llmhostd-*.whl

if [ ! -x "$root/usr/bin/curl" ]; then
    say "A minimal Debian in $root"
    packages=systemd,systemd-sysv,dbus,python3,python3-venv,curl
    debootstrap --variant=minbase --include="$packages" bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
fi

say "Boot"
rm -rf "$root/opt/llmhostd" "$root/var/lib/llmhostd" "$root/etc/llmhostd"
legacy=()
[ -e /sys/fs/cgroup/cgroup.controllers ] || legacy=(systemd.unified_cgroup_hierarchy=no)
systemd-nspawn --directory "$root" --bind-ro "$source_dir:/source" --bind-ro "$wheels:/wheels" --private-network \
    --register=no --keep-unit --boot "${legacy[@]}" >"$work/boot.log" 2>&1 &
nspawn=$!
trap 'kill "$nspawn" 2>/dev/null || true; wait "$nspawn" 2>/dev/null || true' EXIT
wait_for "the system did not boot (see $work/boot.log)" 60 inside systemctl is-active multi-user.target

say "Install, by the first block of INSTALL.md"
block=$(awk '/^```sh/ { on = 1; next } /^```/ { if (on) exit } on' "$source_dir/packaging/INSTALL.md")
printf '%s\n' "$block"
inside env PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 HOME=/root PATH=/usr/local/bin:/usr/bin:/bin \
    sh -ec "cd /source; $block" || fail "the installation"
wait_for "the daemon is not ready" 30 ready
[ "$(inside systemctl is-active llmhostd)" = active ] || fail "the unit is not active"

say "A model answers"
inside env PATH=/usr/local/bin:/usr/bin:/bin HOME=/root llmhostd demo-models || fail "demo-models"
models=$(inside curl --silent --fail http://127.0.0.1:11500/v1/models)
model=$(printf '%s' "$models" | "$python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
inside env PATH=/usr/local/bin:/usr/bin:/bin HOME=/root llmhostd run --max-tokens 16 --stats "$model" "Once" \
    || fail "$model did not answer"
inside env PATH=/usr/local/bin:/usr/bin:/bin HOME=/root llmhostd ps

say "A killed daemon comes back"
before=$(main_pid)
inside systemctl kill --signal KILL --kill-whom main llmhostd
came_back() { [ "$(main_pid)" != "$before" ] && [ "$(main_pid)" != 0 ] && ready; }
wait_for "the daemon did not come back" 30 came_back

say "Stop"
inside systemctl stop llmhostd
[ "$(inside systemctl show llmhostd --property Result --value)" = success ] || fail "it did not stop cleanly"
inside systemd-analyze security --no-pager llmhostd | tail -1

say "PASSED"
