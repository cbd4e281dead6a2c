"""Find the browser that the page tests use: ``python tests/browser.py`` prints its path, installing one if it can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
APT = ("apt-get", "-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20")
LIMIT = 300
"""Seconds for one call of apt-get."""


def find_browser() -> str | None:
    """Return the path of a Chromium on PATH or of the one that playwright downloaded, or None."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    default = Path.home() / ".cache" / "ms-playwright"
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or default)
    return next((str(path) for path in sorted(folder.glob("chromium-*/chrome-linux*/chrome"))), None)


def install() -> None:
    """Install Chromium with apt-get. Does nothing without apt-get or root, and gives up quietly if apt-get fails."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = [*APT, "install", "-y", "--no-install-recommends", "chromium"]
    try:
        for command in (packages, [*APT, "update"], packages):  # a fresh image has no package lists yet
            done = subprocess.run(command, env=env, capture_output=True, timeout=LIMIT)
            if command is packages and done.returncode == 0:
                return
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    if find_browser() is None:
        print("No Chromium found: trying apt-get install chromium ...", flush=True)
        install()
    print(f"Browser for the page tests: {find_browser() or 'none, they will be skipped'}")
    sys.exit(0)
