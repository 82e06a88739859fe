"""Many runs, a few at a time, each kept as soon as it is finished."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dcrl.result import Status
from dcrl.run import Config, execute, lines

ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def identity(config: Config) -> str:
    """Return what makes a run the same run: everything that decides it."""
    return json.dumps(asdict(config), sort_keys=True)


def run_all(
    configs: Sequence[Config],
    path: Path,
    processes: int,
    on_row: Callable[[dict[str, Any], int, int], None],
) -> None:
    """Run what is not yet in `path`, a file of JSON lines.

    A kill loses the runs in progress and nothing else: each row is on disk before the next run
    of its process begins. Runs that differ in any setting from the ones asked for are left alone.
    """
    done = {row["identity"] for row in lines(path)}
    todo = [config for config in configs if identity(config) not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    if todo:
        os.environ.update({name: os.environ.get(name, value) for name, value in ONE_CORE.items()})
        context = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(
                min(processes, len(todo)),
                mp_context=context,
                initializer=_end_with,
                initargs=(os.getpid(),),
            ) as pool,
            path.open("a+b") as file,
        ):
            _end_line(file)
            waiting = iter(todo)
            running = {pool.submit(_run, c) for c in _take(waiting, processes)}
            while running:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    row = future.result()
                    file.write(json.dumps(row).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                    on_row(row, len(configs) - len(todo), len(configs))
                    running |= {pool.submit(_run, c) for c in _take(waiting, 1)}


def finished_rows(configs: Sequence[Config], path: Path) -> list[dict[str, Any]]:
    """Return the rows of those runs that are in `path`, in the order of `configs`."""
    done = {row["identity"]: row for row in lines(path)}
    return [done[identity(config)] for config in configs if identity(config) in done]


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would go on for nobody: it ends with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_line(file: Any) -> None:
    """A kill may have cut the last line short: begin a new one after it."""
    if file.seek(0, os.SEEK_END) > 0:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _take(waiting: Any, count: int) -> list[Config]:
    return [config for _, config in zip(range(count), waiting, strict=False)]


def _run(config: Config) -> dict[str, Any]:
    _, result, row = execute(config, None)
    if result.status is Status.STOPPED:  # a run that was cut short is not a finished one
        raise KeyboardInterrupt
    return {**row, **config.to_json(), "identity": identity(config)}
