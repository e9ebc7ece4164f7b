"""`python -m tests.oracle [--oldest] [--scores] [--orders N] [--steps N] [--seed N] [--feature-gates NAME=true]`: build
the program if need be, and let it answer questions from stdin, one a line."""

import os
import sys

from tests.oracle import program

if __name__ == "__main__":
    given = sys.argv[1:]
    oracle = str(program(oldest="--oldest" in given))
    os.execv(oracle, [oracle, *(each for each in given if each != "--oldest")])
