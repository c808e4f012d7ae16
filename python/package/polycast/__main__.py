"""`python -m polycast` is the program `polycast`."""

import os
import sys

from polycast._program import program

os.execv(program(), ["polycast", *sys.argv[1:]])
