# How the scripts beside it speak; they source it after setting `speaker`.
# shellcheck shell=sh disable=SC2154

say() { echo "$speaker: $*"; }
stop() { say "$*" >&2; exit 1; }

# For what may fail.
silently() { "$@" >/dev/null 2>&1; }

# apt and pip print hundreds of lines; show the last ones, and only on failure.
quietly() {
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        stop "'$1' failed; the lines above say why."
    fi
    rm -f "$log"
}
