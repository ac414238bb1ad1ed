"""Fit the polynomials of `jitgemm.kernels.mathlib` and write `kernels/mathdata.py`.

python benchmarks/fit_math.py  # needs mpmath; some seconds

Each table is a polynomial fitted to its function by weighted least squares at Chebyshev points in
60 digits, which is within a bit of the minimax polynomial.  Coefficients are rounded to the element
type one after another, from the constant one up, and the later ones fitted anew each time, so that
they make up for what rounding the earlier ones cost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import mpmath as mp

mp.mp.dps = 60
Real = mp.mpf
Function = Callable[[Real], Real]
TARGET = Path(__file__).parent.parent / "src/jitgemm/kernels/mathdata.py"


def rounded(x: Real, bits: int) -> float:
    """To the nearest f32 or f64 (through a double: a rare double rounding does no harm here)."""
    return float(x) if bits == 64 else float(struct.unpack("f", struct.pack("f", float(x)))[0])


def short(x: Real, digits: int) -> float:
    """To the nearest number with that many significant bits."""
    exponent = int(mp.floor(mp.log(abs(x), 2))) + 1 - digits
    return float(mp.ldexp(mp.nint(mp.ldexp(x, -exponent)), exponent))


def horner(coefficients: list[Real], x: Real) -> Real:
    total = mp.mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def least_squares(samples: list[tuple[Real, Real, Real]], first: int, degree: int) -> list[Real]:
    """Powers ``first..degree`` nearest to samples ``(x, f(x), weight)``, by normal equations."""
    count = degree + 1 - first
    rows = [[w * x ** (first + j) for j in range(count)] for x, _, w in samples]
    right = [w * y for _, y, w in samples]
    columns = list(zip(*rows, strict=True))
    matrix = mp.matrix(count, count)
    for i in range(count):
        for j in range(i + 1):
            matrix[i, j] = matrix[j, i] = mp.fdot(columns[i], columns[j])
    return list(mp.lu_solve(matrix, mp.matrix([mp.fdot(c, right) for c in columns])))


def fit(
    f: Function, weight: Function, lo: float, hi: float, degree: int, bits: int
) -> tuple[list[float], float]:
    """Rounded coefficients and the error of the polynomial they make."""
    low, high = mp.mpf(lo), mp.mpf(hi)
    middle, half, count = (low + high) / 2, (high - low) / 2, 6 * degree + 20
    points = [middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    samples = [(x, f(x), weight(x)) for x in points if x]
    done: list[Real] = []
    for power in range(degree + 1):
        left = [(x, y - horner(done, x), w) for x, y, w in samples]
        done.append(mp.mpf(rounded(least_squares(left, power, degree)[0], bits)))
    grid = [low + (high - low) * i / 2000 for i in range(2001)]
    worst = max(abs(weight(x) * (horner(done, x) - f(x))) for x in grid if x)
    return [float(c) for c in done], float(mp.log(worst, 2))


def taylor(f: Function, near: Function, limit: float) -> Function:
    """``f``, or ``near`` where ``f`` would divide zero by zero."""
    return lambda x: near(x) if abs(x) < limit else f(x)


def tables(bits: int) -> dict[str, tuple[list[float], str]]:
    """All coefficient tables of one element type, with what they approximate."""
    wide = bits == 64
    ln2, out = mp.log(2), {}

    def add(name: str, what: str, got: tuple[list[float], float]) -> None:
        out[name] = (got[0], f"{what}; error 2**{got[1]:.1f}")
        print(bits, name, out[name][1], flush=True)

    # e**r = 1 + r + r**2 * p(r); a little beyond ln(2)/2 because r is rounded.
    edge = float(ln2 / 2) * (1 + (1e-6 if wide else 1e-4))
    add(
        "EXP",
        "(e**r - 1 - r) / r**2 on |r| <= ln(2)/2, relative to e**r",
        fit(
            taylor(lambda r: (mp.exp(r) - 1 - r) / r**2, lambda r: 1 / mp.mpf(2) + r / 6, 1e-25),
            lambda r: r**2 / mp.exp(r),
            -edge,
            edge,
            9 if wide else 4,
            bits,
        ),
    )
    add(
        "LOG",
        "(ln(1+f) - f) / f**2 on [1/sqrt(2), sqrt(2)] - 1, relative to ln(1+f)",
        fit(
            taylor(lambda f: (mp.log1p(f) - f) / f**2, lambda f: -1 / mp.mpf(2) + f / 3, 1e-25),
            lambda f: abs(f**2 / mp.log1p(f)),
            float(mp.sqrt(0.5) - 1),
            float(mp.sqrt(2) - 1),
            19 if wide else 8,
            bits,
        ),
    )
    limit = 1.0
    add(
        "ERF_SMALL",
        f"erf(x)/x - 1 as polynomial in x**2, x <= {limit}",
        fit(
            lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1 if s else 2 / mp.sqrt(mp.pi) - 1,
            lambda _: mp.mpf(1),
            0.0,
            limit**2,
            12 if wide else 6,
            bits,
        ),
    )
    top = 6.0 if wide else 4.0
    # The tail is subtracted from 1, so an absolute error there is what counts.
    add(
        "ERF_TAIL",
        f"-ln(erfc(x)) on [{limit}, {top}], times erfc(x)",
        fit(
            lambda x: -mp.log(mp.erfc(x)),
            mp.erfc,
            limit,
            top,
            17 if wide else 6,
            bits,
        ),
    )
    far, k = (39.0, 2.0) if wide else (15.0, 1.5)

    def mills(q: Real) -> Real:
        t = 2 * k / (1 - q) - k  # q = 1 - 2k/(t+k)
        return mp.erfc(t / mp.sqrt(2)) / 2 * mp.exp(t * t / 2) * (t + k)

    add(
        "MILLS",
        f"(t+{k}) e**(t**2/2) Phi(-t) in powers of 1 - {2 * k}/(t+{k}), t <= {far}",
        fit(
            mills, lambda q: 1 / mills(q), -1.0, float(1 - 2 * k / (far + k)), 30 if wide else 13,
            bits,
        ),
    )  # fmt: skip
    return out


def constants(bits: int) -> dict[str, tuple[list[float], str]]:
    """Numbers split in parts: the first short enough for exact products, or the nearest one."""
    ln2 = mp.log(2)
    c1 = short(ln2, 16 if bits == 32 else 40)
    a = 2 * mp.sqrt(2 / mp.pi)
    b = a * mp.mpf("0.044715")
    split = {"A": a, "B": b}
    out = {
        "LN2": ([c1, rounded(ln2 - mp.mpf(c1), bits)], "its first part has 8 (11) bits to spare"),
        "LOG2E": ([rounded(1 / ln2, bits)], ""),
    }
    for name, x in split.items():
        # Short: its sum with another number has an exact error (kernels.mathlib).
        high = short(x, 16 if bits == 32 else 40) if name == "A" else rounded(x, bits)
        what = "2 sqrt(2/pi)" if name == "A" else "0.044715 times that"
        out[f"GELU_{name}"] = ([high, rounded(x - mp.mpf(high), bits)], what)
    return out


HEAD = '''"""Coefficients of :mod:`jitgemm.kernels.mathlib`, by element type.

Written by ``benchmarks/fit_math.py``: least squares at Chebyshev points in 60 digits,
coefficients rounded one after another.  Errors are those of the rounded polynomials, not of
evaluating them.
"""

from __future__ import annotations

__all__ = ["COEFFICIENTS"]

# fmt: off
COEFFICIENTS: dict[str, dict[str, tuple[float, ...]]] = {
'''


def main() -> None:
    lines = [HEAD.rstrip("\n")]
    for bits in (32, 64):
        lines.append(f'    "f{bits}": {{')
        for name, (values, what) in {**constants(bits), **tables(bits)}.items():
            if what:
                lines.append(f"        # {what}")
            lines.append(f'        "{name}": (')
            lines += [f"            {value!r}," for value in values]
            lines.append("        ),")
        lines.append("    },")
    lines.append("}")
    TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
