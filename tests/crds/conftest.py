"""Lets these tests import `tools.crds`, which is run from the root of the repository."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
