#!/usr/bin/env bash
# The console's tests look at its pages in Chromium: installs it where it may. Without one they are
# skipped, or fail with PENSTOCK_TEST_EVERYTHING.
set -euo pipefail

have_browser() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

have_browser && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing Chromium for the tests of penstock ui …"
  export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
  apt-get update -qq || true
  said=$(apt-get install -y -qq --no-install-recommends chromium chromium-driver 2>&1) || true
  hash -r
  have_browser && exit 0
  tail -n 5 <<<"$said" >&2
fi
echo "No Chromium: tests of penstock ui in a browser are skipped. To run them, on Debian:" >&2
echo "    sudo apt-get install chromium chromium-driver" >&2
