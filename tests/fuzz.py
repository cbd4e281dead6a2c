"""Run every property test again and again, each round with a fresh seed: ``python tests/fuzz.py [MINUTES] [SEED]``.

Without MINUTES, or with 0, the search ends at Ctrl-C. With a SEED, that round alone is run. The first round that fails
ends the search; hypothesis prints the smallest example found, and the last lines say how to run the round again.
"""

import random
import re
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
OPTIONS = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", "hypothesis", "--hypothesis-profile=fuzz"]


def property_tests():
    files = sorted(TESTS.rglob("test_*.py"))
    return [str(path) for path in files if re.search(r"^from hypothesis", path.read_text(encoding="utf-8"), re.M)]


def run_round(seed):
    """Return pytest's exit code and its output."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--hypothesis-seed={seed}", *property_tests()]
    done = subprocess.run(command, cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main(minutes, seed):
    began, rounds = time.monotonic(), 0
    while seed is None or rounds == 0:
        chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
        code, output = run_round(chosen)
        rounds += 1
        elapsed = time.monotonic() - began
        if code:
            print(output)
            print(f"Round {rounds} failed with seed {chosen}.")
            print(f"To run it again: make fuzz SEED={chosen}")
            print(f"One test alone: .venv/bin/pytest --hypothesis-profile=fuzz --hypothesis-seed={chosen} TEST")
            print("To keep the example, add it to the test with @example.")
            return 1
        print(f"Round {rounds}, seed {chosen}: passed after {elapsed / 60:.1f} minutes", flush=True)
        if minutes and elapsed > 60 * minutes:
            break
    return 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument]
    try:
        sys.exit(main(float(arguments[0]) if arguments else 0, int(arguments[1]) if len(arguments) > 1 else None))
    except KeyboardInterrupt:
        print("Stopped. Every round so far passed.")
