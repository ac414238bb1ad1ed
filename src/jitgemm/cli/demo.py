"""``jitgemm demo``: train a small network with scikit-learn, then serve it three ways."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import jitgemm
from jitgemm.cli import numpy_side
from jitgemm.cli.arguments import count, positive, sizes
from jitgemm.cli.extras import require
from jitgemm.cli.tables import Table, progress, show
from jitgemm.cli.timing import Call, busy, ratio, take_turns

__all__ = ["add_parser"]

Array = NDArray[Any]
_BATCHES = (1, 4, 32, 256)
_ROUNDS = 15
_OURS, _NUMPY, _SKLEARN = "jitgemm", "NumPy", "sklearn"


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    parser = commands.add_parser("demo", help="train a small network and serve it with jitgemm")
    parser.add_argument("--threads", type=count, help="for all (default: get_num_threads())")
    parser.add_argument("--epochs", type=count, default=30, help="of training (default 30)")
    parser.add_argument("--hidden", type=sizes, default=(256, 128), metavar="N,...",
                        help="units of the hidden layers (default 256,128)")  # fmt: skip
    parser.add_argument("--seconds", type=positive, default=6.0,
                        help="about how long to serve (default 6)")  # fmt: skip
    parser.set_defaults(run=run)


class Network:
    """A trained perceptron with buffers for one batch size, run by jitgemm or by NumPy.

    Args:
        layers: weights ``(inputs, outputs)`` and biases ``(outputs,)`` of one type; every layer
            but the last ends in a relu.
        batch: rows of a batch.
    """

    def __init__(self, layers: list[tuple[Array, Array]], batch: int) -> None:
        self.layers = layers
        dtype = layers[0][0].dtype
        self.inputs = [np.empty((batch, w.shape[0]), dtype) for w, _ in layers]
        self.outputs = [np.empty((batch, w.shape[1]), dtype) for w, _ in layers]

    def prepare(self, packed: list[jitgemm.PackedRhs]) -> list[jitgemm.Plan]:
        """Plan every layer: product, bias and relu in one pass over prepacked weights."""
        self.packed, last = packed, len(packed) - 1
        self.plans = [
            jitgemm.plan(x, w, out=out, bias=b, activation=None if i == last else "relu")
            for i, (x, w, out, (_, b)) in enumerate(
                zip(self.inputs, packed, self.outputs, self.layers, strict=True)
            )
        ]
        return self.plans

    def jitgemm(self, x: Array) -> Array:
        """Logits by the prepared plans."""
        for plan, w, out in zip(self.plans, self.packed, self.outputs, strict=True):
            x = plan(x, w, out)
        return x

    def numpy(self, x: Array) -> Array:
        """Logits by NumPy, without a temporary."""
        last = len(self.layers) - 1
        for i, (w, b) in enumerate(self.layers):
            out = self.outputs[i]
            np.matmul(x, w, out=out)
            np.add(out, b, out=out)
            if i != last:
                np.maximum(out, 0, out=out)
            x = out
        return x


def _train(options: argparse.Namespace) -> tuple[Any, Array, Array]:
    """The trained classifier, and the images and digits it has not seen."""
    needs = partial(require, package="scikit-learn", extra="demo")
    datasets, selection = needs("sklearn.datasets"), needs("sklearn.model_selection")
    models = needs("sklearn.neural_network")
    x, y = datasets.load_digits(return_X_y=True)
    # Pixels count from 0 to 16.
    x = (x / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = selection.train_test_split(
        x, y, test_size=0.4, stratify=y, random_state=0
    )
    model = models.MLPClassifier(options.hidden, random_state=0, batch_size=64)
    with progress("training", options.epochs) as advance:
        for _ in range(options.epochs):
            model.partial_fit(x_train, y_train, classes=np.arange(10))
            advance()
    return model, np.ascontiguousarray(x_test), y_test


def _layers(model: Any, dtype: type[np.floating[Any]]) -> list[tuple[Array, Array]]:
    pairs = zip(model.coefs_, model.intercepts_, strict=True)
    return [(np.ascontiguousarray(w, dtype), np.ascontiguousarray(b, dtype)) for w, b in pairs]


def _stream(forward: Callable[[Array], object], x: Array, batch: int) -> Call:
    """A call that serves the next batch of ``x``, again and again."""
    starts = range(0, len(x) - batch + 1, batch)
    batches: Iterator[Array] = cycle([x[i : i + batch] for i in starts])
    return lambda: forward(next(batches))


def _serve(
    model: Any, x: Array, packed: list[jitgemm.PackedRhs], options: argparse.Namespace
) -> tuple[list[tuple[str, ...]], str]:
    """The table's rows, and the explanation of the first layer at batch 32."""
    layers, rows, words = _layers(model, np.float32), [], ""
    turn = options.seconds / (len(_BATCHES) * _ROUNDS * 3)
    with progress("serving ", len(_BATCHES) * _ROUNDS * 3) as advance:
        for batch in _BATCHES:
            network = Network(layers, batch)
            plans = network.prepare(packed)
            words = plans[0].explain() if batch == 32 else words
            forwards = {_OURS: network.jitgemm, _NUMPY: network.numpy,
                        _SKLEARN: model.predict_proba}  # fmt: skip
            contestants = {name: _stream(f, x, batch) for name, f in forwards.items()}
            times = take_turns(contestants, _ROUNDS, turn, advance)
            operations = 2 * batch * sum(w.size for w, _ in layers)
            rows.append((
                str(batch),
                *(f"{median(rounds) * 1e6:.2f}" for rounds in times.values()),
                *(f"{operations / median(times[name]) / 1e9:.1f}" for name in (_OURS, _NUMPY)),
                *(f"{ratio(times[name], times[_OURS]):.2f}" for name in (_NUMPY, _SKLEARN)),
            ))  # fmt: skip
    return rows, words


def _agreement(model: Any, x: Array, y: Array, packed: list[jitgemm.PackedRhs]) -> Table:
    """All answers on the whole test set, side by side."""
    single = Network(_layers(model, np.float32), len(x))
    single.prepare(packed)
    ours = single.jitgemm(x).copy()
    theirs = single.numpy(x)
    exact = Network(_layers(model, np.float64), len(x)).numpy(x.astype(np.float64))
    classes = ours.argmax(axis=1)
    answers = {"NumPy float32": theirs.argmax(axis=1), "NumPy float64": exact.argmax(axis=1),
               _SKLEARN: model.predict(x)}  # fmt: skip
    differences = {"NumPy float32": theirs, "NumPy float64": exact}

    def right(predicted: Array) -> str:
        return f"{(predicted == y).mean():.2%}"

    rows = [(_OURS, right(classes), "", "")]
    for name, predicted in answers.items():
        logits = differences.get(name)
        gap = "" if logits is None else f"{np.abs(ours - logits).max():.2g}"
        rows.append((name, right(predicted), f"{(predicted == classes).sum()} of {len(y)}", gap))
    columns = ("", "accuracy", "same digit as jitgemm", "largest difference of logits")
    caption = f"Logits reach {np.abs(exact).max():.1f} in magnitude."
    return Table(f"Agreement on all {len(y)} held-out images", columns, rows, caption, numbers=True)


def run(options: argparse.Namespace) -> int:
    """Train, serve, compare, explain."""
    require("sklearn", package="scikit-learn", extra="demo")
    require("rich", package="rich", extra="demo")
    threads = jitgemm.get_num_threads() if options.threads is None else options.threads
    numpy_side.restart(threads, own_process=options.own_process)
    note = busy(threads)
    # Loads the BLAS libraries whose threads are to be limited.
    require("sklearn.neural_network", package="scikit-learn", extra="demo")
    with numpy_side.limited(threads) as opponent, jitgemm.threads(threads):
        # Training multiplies small batches: a second thread would cost more than it brings.
        with numpy_side.limited(1):
            model, x, y = _train(options)
        packed = [jitgemm.prepack_rhs(w) for w, _ in _layers(model, np.float32)]
        rows, words = _serve(model, x, packed, options)
        agreement = _agreement(model, x, y, packed)
    columns = ("batch", "jitgemm µs", "NumPy µs", "sklearn µs", "jitgemm GFLOP/s",
               "NumPy GFLOP/s", "speed-up over NumPy", "over sklearn")  # fmt: skip
    widths = (x.shape[1], *options.hidden, 10)
    network = " + ".join(f"{a}x{b}" for a, b in pairwise(widths))
    caption = (
        f"Layers {network}, float32, {threads} thread(s) each. {opponent}. Medians of {_ROUNDS} "
        "interleaved rounds; a speed-up below 1 means that jitgemm is slower. "
        f"sklearn: predict_proba, with its checks and softmax.{note}"
    )
    show(Table("Serving digits: time of one batch", columns, rows, caption, numbers=True))
    show(agreement)
    print("First layer at batch 32, plan.explain():\n")
    print(words)
    return 0
