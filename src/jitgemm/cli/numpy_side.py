"""A fair opponent: NumPy with its BLAS undisturbed and as many threads as jitgemm gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from jitgemm.cli.extras import optional

__all__ = ["fair_environment", "limited", "restart"]

# Debugging switches of OpenBLAS: they pin kernels or block sizes of another machine.
_SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# Read when the library is loaded; setting them later has no effect.
_COUNTS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
_RESTARTED = "JITGEMM_CLI_RESTARTED"


def fair_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """``environment`` without what slows NumPy down, and with ``threads`` BLAS threads."""
    kept = {name: value for name, value in environment.items() if name not in _SLOWING}
    return {**kept, **dict.fromkeys(_COUNTS, str(threads))}


def restart(threads: int, *, own_process: bool) -> None:
    """Restart this process in a fair environment, once, if its environment is not fair.

    A process that belongs to somebody else (``own_process`` false) is left alone, with a line
    about what slows NumPy down in it.
    """
    wanted = fair_environment(os.environ, threads)
    removed = [name for name in _SLOWING if name in os.environ]
    if wanted == dict(os.environ) or _RESTARTED in os.environ:
        return
    if not (own_process and sys.executable):
        if removed:
            print(f"Note: {', '.join(removed)} is set, which slows NumPy down.")
        return
    without = f" without {' and '.join(removed)}" if removed else ""
    print(f"Restarted{without} with {'='.join(_COUNTS)}={threads}, for a fair comparison.",
          flush=True)  # fmt: skip
    # The same command again, by the arguments the interpreter itself was given.
    os.execve(sys.executable, sys.orig_argv, {**wanted, _RESTARTED: "1"})  # noqa: S606


@contextmanager
def limited(threads: int) -> Iterator[str]:
    """Give NumPy (and scikit-learn) ``threads`` threads inside a ``with`` block.

    Yields:
        A phrase that says which NumPy and BLAS run, and how their threads were set.
    """
    library = optional("threadpoolctl")
    if library is None:
        how = "set by environment" if os.environ.get(_COUNTS[0]) == str(threads) else "not limited"
        yield f"NumPy {np.__version__}, threads {how}"
        return
    with library.threadpool_limits(limits=threads):
        names = {
            f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', 'any')})"
            for pool in library.threadpool_info()
            if pool["user_api"] == "blas"
        }
        yield (
            f"NumPy {np.__version__} on {', '.join(sorted(names)) or 'no known BLAS'}, "
            "threads set by threadpoolctl"
        )
