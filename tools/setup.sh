#!/usr/bin/env bash
# Makes the virtual environment, sees to Java and to a browser. Usage: tools/setup.sh PYTHON VENV
set -euo pipefail
python=$1 venv=$2

if ! command -v "$python" >/dev/null; then
  echo "penstock needs Python 3.11 or newer, and there is no $python. Run:" >&2
  echo "    sudo apt-get install python3 python3-venv" >&2
  echo "or name another one: make PYTHON=python3.12 setup" >&2
  exit 1
fi
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"penstock needs Python 3.11 or newer, found {sys.version.split()[0]}: "
             "install it, then run make PYTHON=python3.12 setup")
PY

# Debian and Ubuntu pack it apart, one for each Python.
if ! "$python" -c "import ensurepip, venv" 2>/dev/null; then
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $package …"
    export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
    apt-get update -qq && apt-get install -y -qq "$package" >/dev/null
  else
    echo "Python's venv module is missing. Run: sudo apt-get install $package" >&2
    exit 1
  fi
fi
# One that was interrupted while it was made has a python and no pip: it gets one now.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv "$venv"
echo "Installing Python packages (a few minutes the first time; PySpark alone is 490 MB) …"
# Every file is compared with the hash in its list. Nothing is built in isolation: there, pip and uv
# would take whatever build tools are newest.
"$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes \
  -r tools/build-requirements.lock
"$venv/bin/uv" pip install -q --python "$venv/bin/python" --require-hashes --no-build-isolation \
  -r requirements.lock
"$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
# PySpark is built from its source archive: each build leaves 1.4 GB in uv's cache, which no other
# environment uses. Only what nothing refers to goes, and the environment is complete without it.
"$venv/bin/uv" cache prune -q || echo "uv's cache was not tidied; it may need more space than it has to." >&2
bash tools/java.sh
bash tools/browser.sh
