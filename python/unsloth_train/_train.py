"""Runs training in the program, and reads the metrics that it writes."""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ._program import NotInstalledError as NotInstalledError
from ._program import program

Row = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class TrainingError(RuntimeError):
    """The program failed or was stopped; the message is the program's own.

    exit_code: 2 usage or configuration, 3 input, 4 runtime, 129, 130 or 143 stopped after saving, 128 + N killed by signal N.
    error_id: the id in `error[ID]`, which `unsloth-train explain ID` explains, or None.
    """

    def __init__(self, log: deque[str], code: int) -> None:
        lines = list(log)
        begin = next((i for i, line in enumerate(lines) if re.search(r"\berror(\[\S+\])?: ", line)), -20)
        text = "\n".join(lines[begin:])
        found = re.search(r"\berror\[(\S+)\]: ", text)
        self.exit_code = code if code > 0 else 128 - code
        self.error_id: str | None = found[1] if found else None
        if code < 0:
            text += f"\nunsloth-train was killed by {signal.Signals(-code).name}"
        super().__init__(text.strip() or f"unsloth-train ended with exit code {code}")


def train(
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    on_metrics: Callable[[Row], object] | None = None,
    **options: Any,
) -> list[Row]:
    """Trains, and returns the rows of metrics that the run wrote. Arguments and exceptions are those of `stream`.

    `on_metrics` is called with each row as it is written. If it raises, the run saves and stops, and the exception is passed on.
    """
    rows = []
    with contextlib.closing(stream(config, **options)) as new_rows:
        for row in new_rows:
            rows.append(row)
            if on_metrics:
                on_metrics(row)
    return rows


def stream(
    config: Mapping[str, Any] | str | os.PathLike[str], *, nproc_per_node: int = 1, quiet: bool = False, **options: Any
) -> Generator[Row, None, None]:
    """Trains while it is iterated, and yields each row of metrics.jsonl as it is written. The last one is the summary.

    config: sections and options as in a configuration file, or the path of such a file.
    nproc_per_node: processes, one per GPU.
    quiet: do not copy the program's log to sys.stderr.
    options: flags, which win over `config`: `learning_rate=1e-4`, `**{"training.seed": 1}`.

    Ctrl-C, SIGTERM and SIGHUP make the program save and stop; then this process gets the signal. Leaving the iteration early
    does the same without a signal. Raises TrainingError and NotInstalledError.
    """
    path, environment = program()
    log: deque[str] = deque(maxlen=200)
    with _forwarded_signals() as forward_to, tempfile.TemporaryDirectory(prefix="unsloth-train-") as folder:
        if isinstance(config, Mapping):
            file = Path(folder, "run.json")
            file.write_text(json.dumps(config, default=os.fspath))
            config = file
        flags = [word for name, value in options.items() for word in (f"--{name}", _flag_value(value))]
        arguments = [os.fspath(config), *flags]
        metrics = _find_metrics([path, "config", *arguments], environment)
        launcher = ["launch", "--nproc_per_node", str(nproc_per_node), "--"] if nproc_per_node > 1 else []
        command = [path, *launcher, "train", *arguments]
        with contextlib.closing(_Tail(metrics)) as tail, _started(command, environment, log, quiet) as process:
            forward_to(process)
            while process.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
                yield from tail.new_rows()
    if process.returncode != 0:
        raise TrainingError(log, process.returncode)


def _flag_value(value: Any) -> str:
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else json.dumps(value, default=os.fspath)


def _find_metrics(command: list[str], environment: dict[str, str]) -> Path | None:
    """Asks the program, which knows all defaults and spellings. It also checks the options."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise TrainingError(deque(done.stderr.splitlines()), done.returncode)
    resolved = json.loads(done.stdout)
    name = resolved["logging"]["metrics_file"]
    return Path(resolved["training"]["output_dir"], name) if name else None


class _Tail:
    """The rows that a run adds to its metrics file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.file: IO[bytes] | None = None
        self.rest = b""
        self.seen: set[bytes] = set()
        list(self.new_rows())  # of an earlier run

    def close(self) -> None:
        if self.file:
            self.file.close()

    def new_rows(self) -> Iterator[Row]:
        # A run replaces the file when it starts. The old one stays open, so that its inode is not reused.
        opened = None
        with contextlib.suppress(FileNotFoundError):
            if self.path and not (self.file and os.path.samestat(self.path.stat(), os.fstat(self.file.fileno()))):
                opened = self.path.open("rb")
        if opened:
            self.close()
            self.file = opened
        if self.file is None:
            return
        *lines, self.rest = ((b"" if opened else self.rest) + self.file.read()).split(b"\n")
        rows = [(json.loads(line), line in self.seen) for line in lines]
        self.seen.update(lines)
        # A resumed run keeps the rows up to its step. Rows with a time are never equal by chance, evaluations may be.
        kept = max((row["step"] for row, seen in rows if opened and seen and "step_ms" in row), default=-1)
        yield from (row for row, seen in rows if not (seen and row.get("step", kept + 1) <= kept))


def _end_with(parent: int) -> None:
    """In the child: a run must not keep its GPU when a notebook's kernel is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


@contextlib.contextmanager
def _started(
    command: list[str], environment: dict[str, str], log: deque[str], quiet: bool
) -> Iterator[subprocess.Popen[str]]:
    parent = os.getpid()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=_handles_signals(),  # Ctrl-C then reaches it once, through this process
        # Linux sends the signal when the thread ends that started the child: only the main thread lasts long enough.
        preexec_fn=(lambda: _end_with(parent)) if _handles_signals() else None,
    )

    def copy_log() -> None:
        assert process.stdout
        with process.stdout:
            for line in process.stdout:
                log.append(line.rstrip("\n"))
                if not quiet:
                    print(log[-1], file=sys.stderr, flush=True)

    reader = threading.Thread(target=copy_log, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:  # the caller wants no more rows
            process.terminate()
        process.wait()
        reader.join()


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()  # Python allows no other


@contextlib.contextmanager
def _forwarded_signals() -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    """Passes signals to a process. At the end the previous handlers get the last one, as if it had come then."""
    received: list[int] = []
    processes: list[subprocess.Popen[str]] = []

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        for process in processes:
            process.send_signal(number)

    def forward_to(process: subprocess.Popen[str]) -> None:
        processes.append(process)
        if received:
            process.send_signal(received[-1])

    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _handles_signals() else ():
        if signal.getsignal(number) not in (
            None,
            signal.SIG_IGN,
        ):  # under nohup; of a handler that Python does not know
            handlers[number] = signal.signal(number, forward)
    try:
        yield forward_to
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[-1])
