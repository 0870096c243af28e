"""All of nano's adapters, one after the other: v1a and v1b from new branches, v2a onward from v1a."""

import os
import subprocess
import sys
from pathlib import Path

from snapref.training.config import load_run_config
from snapref.training.stopping import Interrupted, asked_to_stop

FAMILY = ("nano-v1a", "nano-v1b", "nano-v2a")


class NotTrained(ChildProcessError):
    """The training of one of them ended in an error."""


def train_family(
    ship: Path, runs: Path = Path("runs"), *, data: Path | None = None, mix: Path | None = None,
    unseen: Path | None = None, weights: Path | None = None, processes: int = 2, names: tuple[str, ...] = FAMILY,
) -> list[Path]:
    """Train the named ones, each by its own `snapref train adapter`, resuming what was begun; returns the bundles.

    ship: the folder for adapter_v1a.safetensors and so on, with their logs. data: prepared pairs of v1a and v1b (None:
    the renderer's); mix: those of v2a (None: as `data`). A config that continues another takes that one's bundle from
    `ship`. Raises NotTrained, naming the run, where one ends in an error, and Interrupted after Ctrl-C or SIGTERM, when
    its checkpoint is written; those before it are kept, and the next is not begun. Raises ValueError for other names.
    """
    if unknown := [name for name in names if name not in FAMILY]:
        raise ValueError(f"only is {unknown[0]!r}; it must be one of {', '.join(FAMILY)}")
    if processes < 1:
        raise ValueError(f"processes is {processes}; it must be at least 1")
    bundles = []
    for name in names:
        before = load_run_config(name).options.get("continues")
        files = {"data": mix or data if before else data, "unseen": unseen, "weights": weights}
        files |= {"init": bundle_of(before, ship) if before else None, "runs": runs, "ship": bundle_of(name, ship)}
        words = [word for key, path in files.items() if path for word in (f"--{key}", str(path))]
        code, asked = ended(["train", "adapter", "--config", name, *words], processes)
        if asked:
            raise Interrupted(f"{name} was stopped; the same command goes on with it in {runs}", asked)
        if code:
            raise NotTrained(f"training {name} ended with code {code}; run it again, it goes on in {runs}")
        bundles.append(bundle_of(name, ship))
    return bundles


def ended(words: list[str], processes: int) -> tuple[int, int]:
    """(exit code of a command of snapref, the signal that asked for its end or 0), when it has ended.

    It is in a session of its own: a terminal would send it Ctrl-C as well, and twice is a kill while it saves.
    """
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    command, environment = [*launcher(processes), *words], {"OMP_NUM_THREADS": threads, **os.environ}
    children, early = [], []  # what came while the command was being started is passed on when it has been

    def pass_on(number: int) -> None:
        if children:
            children[0].send_signal(number)
        else:
            early.append(number)

    with asked_to_stop(pass_on) as asked, subprocess.Popen(command, env=environment, start_new_session=True) as child:
        children.append(child)
        for number in early:
            pass_on(number)
        return child.wait(), asked()


def launcher(processes: int) -> list[str]:
    """What stands before the words of a command of snapref, to run it in so many processes."""
    # By number: on a machine whose own name does not resolve they would not find each other.
    here = ["--standalone", "--local_addr", "127.0.0.1", "--nproc_per_node", str(processes)]
    return [sys.executable, "-m", "torch.distributed.run", *here, "-m", "snapref"]


def bundle_of(name: str, folder: Path) -> Path:
    return folder / f"adapter_{name.removeprefix('nano-')}.safetensors"
