#!/usr/bin/env bash
# Makes the virtual environment and sees to Java. Usage: tools/setup.sh PYTHON VENV
set -euo pipefail
python=$1 venv=$2

"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"penstock needs Python 3.11 or newer, found {sys.version.split()[0]}: "
             "install it, then run make PYTHON=python3.12 setup")
PY

if ! "$python" -c "import ensurepip, venv" 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
  else
    echo "Python's venv module is missing. Run: sudo apt-get install python3-venv" >&2
    exit 1
  fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "Installing Python packages (a few minutes the first time; PySpark alone is 490 MB) …"
"$venv/bin/python" -m pip install -q --disable-pip-version-check uv
"$venv/bin/uv" pip install -q --python "$venv/bin/python" -r requirements.lock
bash tools/java.sh
