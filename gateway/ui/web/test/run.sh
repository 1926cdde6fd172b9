#!/bin/sh
# The browser tests, or one sentence that says what they lack: `make test-browser`. Pictures are in .cache/page.
set -eu
cd "$(dirname "$0")/../../../.."
skip() { echo "make test-browser: SKIPPED: $1"; exit 0; }
command -v node >/dev/null && command -v npm >/dev/null || skip "there is no node with npm"
node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' || skip "node $(node --version) is older than 20.19"
found=
for c in "${PAGE_CHROMIUM:-}" /usr/bin/chromium /usr/bin/chromium-browser /usr/bin/chromium-headless-shell /usr/bin/google-chrome; do
	[ -n "$c" ] && [ -x "$c" ] && { found=$c; break; }
done
[ -n "$found" ] || skip "there is no Chromium; on Debian: apt-get install chromium"
root=$PWD
cd gateway/ui/web
[ -d node_modules/playwright-core ] || npm ci --silent
PAGE_CHROMIUM=$found PAGE_BIN=$root/bin/spillway PAGE_SHOTS=$root/.cache/page exec timeout 480 node --test --test-reporter=spec test/browser.test.mjs
