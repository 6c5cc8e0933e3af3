"""Have what tests share, a folder above, be importable where a program of this folder runs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
