"""Child processes that tests start, pause at a step and stop. None outlives its test.

Most are forks of a process that has already imported torch, matplotlib, scikit-learn and ogc, because the imports take
longer than the tests.
"""

import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

LIMIT = 900  # seconds; reached only if something hangs
LIBRARIES = ("torch", "torch._dynamo", "matplotlib.figure", "typer")
LIBRARIES += ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "pydantic", "rich.live")
LIBRARIES += ("sklearn.datasets", "ogc.cli.app", "ogc.training", "ogc.report.report", "ogc.benchmark.run")
STARTED = []


def popen(command, **options):
    """Start a process. It and its children are killed when the test ends."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    STARTED.append(process)
    return process


def fork(script, *arguments, env=None, cwd=None, merged=False, strict=False):
    """Run a Python file like ``popen``, but in a fork. ``env`` is added to this process's environment.

    :param merged: whether stderr is redirected to stdout.
    :param strict: whether warnings are errors.
    """
    request = {"script": str(script), "arguments": [*map(str, arguments)], "cwd": str(cwd or Path.cwd())}
    request |= {"env": {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, "merged": merged, "strict": strict}
    process = Server.get().fork(request)
    STARTED.append(process)
    return process


def output_of(code, folder):
    """Run Python code in a fork, as a file in ``folder``. Return its output."""
    script = Path(folder, "code.py")
    script.write_text(code)
    process = fork(script, cwd=folder)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return stdout


def kill_all():
    """Kill the processes that are still running, and close all pipes."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(condition, what, *processes):
    """Wait until ``condition()`` is true. Fail if a process ends first."""
    end = time.monotonic() + LIMIT
    while not condition():
        ended = [process for process in processes if process.poll() is not None]
        assert not ended or condition(), f"ended before {what}: {ended[0].communicate()}"
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.01)


def ogc(*arguments, **options):
    """Run ``ogc`` in a fork. With the environment of ``held`` it pauses at a step."""
    return fork(__file__, *arguments, **options)


# --- paused at a step ------------------------------------------------------------------------------------------------


def held(path, after=1):
    """Environment of a process that creates ``path`` at step number ``after`` and waits.

    It continues when the file is removed or when it receives a signal that it handles.
    """
    return {"HOLD": str(path), "AFTER": str(after)}


def hold_training():
    """Pause this process as specified by the environment of ``held``."""
    if not os.environ.get("HOLD"):
        return
    from ogc.report.progress import Progress

    path, left = Path(os.environ["HOLD"]), int(os.environ["AFTER"])
    moved, parent = Progress.moved, os.getppid()

    def hold(self, *arguments, **options):
        nonlocal left
        left -= 1
        if left == 0:
            handler = signal.getsignal(signal.SIGTERM)  # the first signal restores the previous handler
            path.touch()
            while path.exists() and signal.getsignal(signal.SIGTERM) is handler:
                if os.getppid() != parent:
                    os._exit(1)  # the test process has ended
                time.sleep(0.01)
        moved(self, *arguments, **options)

    Progress.moved = hold


# --- forks -----------------------------------------------------------------------------------------------------------


class ForkedProcess:
    """A fork of the server, with the methods of ``Popen``. Its output goes to files."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, folder, merged):
        self.folder, self.merged = folder, merged
        wait_for((folder / "pid").exists, "a fork", Server.running.process)
        self.pid = int((folder / "pid").read_text())

    def poll(self):
        if self.returncode is None and (self.folder / "status").exists():
            self.returncode = int((self.folder / "status").read_text())
        return self.returncode

    def wait(self):
        wait_for(lambda: self.poll() is not None, "the end of a fork", Server.running.process)
        return self.returncode

    def communicate(self, timeout=LIMIT):
        self.wait()
        return (self.folder / "stdout").read_text(), "" if self.merged else (self.folder / "stderr").read_text()

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the server is about to publish its status
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that is forked. It reads one request per line and exits when this process does."""

    running = None

    @classmethod
    def get(cls):
        if cls.running is None:
            cls.running = cls()
        return cls.running

    @classmethod
    def end(cls):
        if cls.running is not None:
            cls.running.process.stdin.close()
            cls.running.process.wait()
            cls.running.folder.cleanup()
            cls.running = None

    def __init__(self):
        self.folder, self.forks = tempfile.TemporaryDirectory(), 0
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)

    def fork(self, request):
        self.forks += 1
        folder = Path(self.folder.name, str(self.forks))
        folder.mkdir()
        for name in ("stdout", "stderr"):  # a fork that is killed at once would not create them
            (folder / name).touch()
        self.process.stdin.write(json.dumps(request | {"folder": str(folder)}).encode() + b"\n")
        self.process.stdin.flush()
        return ForkedProcess(folder, request["merged"])


def serve():
    """Fork once per line of input. Return the request in the child, and None at the end of the input."""
    for name in LIBRARIES:
        __import__(name)
    children, unread = {}, b""
    while True:
        if select.select([0], [], [], 0.02 if children else None)[0]:
            read = os.read(0, 2**16)
            if not read:
                return None
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                request = json.loads(line)
                child = os.fork()
                if child == 0:
                    return request
                children[child] = Path(request["folder"])
                publish(children[child] / "pid", child)
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            publish(children.pop(ended[0]) / "status", os.waitstatus_to_exitcode(ended[1]))


def publish(path, value):
    path.with_suffix(".new").write_text(str(value))
    path.with_suffix(".new").rename(path)


def become(request):
    """Set up the fork like a new process and run the script."""
    os.setsid()
    folder = Path(request["folder"])
    files = [os.open(os.devnull, os.O_RDONLY)]
    files += [os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("stdout", "stderr")]
    for number, file in enumerate([files[0], files[1], files[1 if request["merged"] else 2]]):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[:1] = [str(Path(request["script"]).parent), *request["env"].get("PYTHONPATH", "").split(os.pathsep)]
    if request["strict"]:
        warnings.simplefilter("error")
    runpy.run_path(request["script"], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        request = serve()
        if request is not None:
            become(request)
    else:
        from ogc.cli import main

        hold_training()
        main()
