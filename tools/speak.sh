# How the scripts beside it speak; they source it after setting `speaker`.
# shellcheck shell=sh disable=SC2154

say() { echo "$speaker: $*"; }
stop() { say "$*" >&2; exit 1; }

# For what may fail.
silently() { "$@" >/dev/null 2>&1; }

# apt and pip print hundreds of lines; show the last ones, and only on failure. A terminal shows how
# far they are.
quietly() {
    log=$(mktemp) follower="" failed=no
    if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then
        follow "$log" &
        follower=$!
    fi
    "$@" >"$log" 2>&1 || failed=yes
    if [ -n "$follower" ]; then
        kill $follower 2>/dev/null || true
        wait $follower 2>/dev/null || true
        printf '\r\033[K'
    fi
    if [ $failed = yes ]; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        stop "'$1' failed; the lines above say why."
    fi
    rm -f "$log"
}

# Writes over itself how far the command of a log is, with the seconds so far, until this script ends.
follow() {
    columns=$(stty size 2>/dev/null </dev/tty | sed 's/.* //')
    if [ "${columns:-0}" = 0 ]; then columns=80; fi
    began=$(date +%s)
    while kill -0 $$ 2>/dev/null; do
        line=$(echo "... $(($(date +%s) - began)) s: $(describe "$1")" | cut -c "1-$((columns - 1))")
        printf '\r\033[K%s' "$line"
        sleep 0.5
    done
}

# The last line of a log; of pip, how many packages it has found, and then installed, which it does
# without a word.
describe() {
    last=$(tail -n 1 "$1")
    case $last in
        "Installing collected packages: "*)
            ready=$(find .venv*/lib/python3*/site-packages -maxdepth 1 -name '*.dist-info' -newer "$1")
            echo "installing packages: $(echo "$ready" | grep -c .) of $(echo "$last" | tr , '\n' | grep -c .)" ;;
        Collecting* | *Downloading* | *"Using cached"*)
            echo "$(grep -c '^Collecting ' "$1") packages found: $last" ;;
        *) echo "$last" ;;
    esac
}
