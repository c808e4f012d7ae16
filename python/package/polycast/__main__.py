"""Runs the program `polycast` as `python -m polycast`."""

import os
import sys

from polycast._program import program

os.execv(program(), ["polycast", *sys.argv[1:]])
