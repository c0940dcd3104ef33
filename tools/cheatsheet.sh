#!/bin/sh
# Makes the cheat sheet's PDF from its page:  tools/cheatsheet.sh [PDF]
# The one in inst/cheatsheet is kept with the sources, because few computers have chromium.
set -eu
cd "$(dirname "$0")/.."
pdf=${1:-inst/cheatsheet/cheatsheet.pdf}
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
# Root, as in a container, has no sandbox.
chromium --headless --no-sandbox --disable-gpu --user-data-dir="$profile" --no-pdf-header-footer \
    --print-to-pdf="$profile/made.pdf" "file://$PWD/inst/cheatsheet/cheatsheet.html" >/dev/null 2>&1
mv "$profile/made.pdf" "$pdf"
