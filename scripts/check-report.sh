#!/bin/sh
# SPDX-License-Identifier: MIT
# Looks at a report in a real browser, Chromium: scripts/check-report.sh BUILD RESULT.json...
# Makes BUILD/report.html, checks that neither a wide screen nor a phone scrolls sideways, and leaves
# pictures of both, light and dark: BUILD/report-*.png.
set -eu
build=$1
shift
command -v chromium >/dev/null || {
    echo "check-report: chromium is not installed (apt-get install chromium)" >&2
    exit 2
}
"$build/deepgemm" report "$@" -o "$build/report.html"

browse() {
    # In a profile of its own; --no-sandbox because a container's root has none.
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
        --allow-file-access-from-files "$@" 2>/dev/null
}

# Chromium has no window as narrow as a phone, so the page is put in a frame. The script below
# writes what the frame's page measures into its own title.
failed=0
for width in 390 1280; do
    frame=$build/report-frame-$width.html
    cat >"$frame" <<END
<title>not loaded</title>
<iframe src="report.html" width="$width" height="3000" style="border:0" onload="
    const page = this.contentDocument.documentElement;
    document.title = page.scrollWidth + ' of ' + page.clientWidth + ', ' +
        page.querySelectorAll('svg').length + ' plots';"></iframe>
END
    title=$(browse --dump-dom "file://$(realpath "$frame")" | sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p')
    echo "$width wide: $title"
    case $title in
    "$width of $width, "*) ;;
    *) failed=1 ;;
    esac
    for scheme in light dark; do
        dark=1
        [ "$scheme" = light ] || dark=0
        browse --window-size="$((width < 500 ? 500 : width)),3000" \
            --blink-settings="preferredColorScheme=$dark" \
            --screenshot="$build/report-$width-$scheme.png" "file://$(realpath "$frame")"
    done
done
echo "pictures: $build/report-*.png"
exit "$failed"
