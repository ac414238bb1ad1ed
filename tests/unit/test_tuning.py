"""Knobs: defaults with a provenance, the environment, bad values that warn once."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from jitgemm import tuning
from jitgemm.errors import IsaError, JitGemmWarning, message
from jitgemm.runtime.pool import Pool
from jitgemm.runtime.pool_code import POOL
from jitgemm.tuning import KNOBS, environment, folder, integer, switch, text, threads_asked


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_warned", set())
    for name in list(os.environ):
        if name.startswith(("JITGEMM_", "OMP_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_has_a_default_a_meaning_and_a_provenance(name: str) -> None:
    knob = KNOBS[name]
    assert knob.name == name
    assert knob.variable == f"JITGEMM_{name.upper()}"
    assert knob.default >= knob.minimum
    assert len(knob.meaning) > 20
    assert len(knob.provenance) > 20
    assert environment(name) == knob.default


@pytest.mark.parametrize("name", KNOBS)
def test_the_environment_sets_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knob = KNOBS[name]
    for value in (knob.minimum, knob.default + 1, knob.maximum):
        monkeypatch.setenv(knob.variable, str(value))
        assert environment(name) == value
    for spelled in (" 77 ", "77\n", "\t+77", "0077"):
        monkeypatch.setenv(knob.variable, spelled)
        assert environment(name) == 77
    for blank in ("", " ", "\t\n"):
        monkeypatch.setenv(knob.variable, blank)
        assert environment(name) == knob.default


# Whatever ``int`` or ``float`` would take of these: a variable is digits.
NO_NUMBERS = [
    "many", "1.5", "1.0", "1e3", "0x10", "--", "-", "+", "1 2", "1,2", "1_000", "\u0663",
    "\uff11\uff12", "inf", "nan", "None", "true", "'5'", "9" * 5000,
]  # fmt: skip


def _refused(variable: str, expected: str, raw: str, instead: str) -> str:
    """What a warning about a variable must say, as a pattern."""
    got = repr(raw if len(raw) <= 60 else raw[:60] + "...")
    text = f"jitgemm: {variable}: expected {expected}, got {got}; ignored, {instead}"
    return f"^{re.escape(text)}$"


@pytest.mark.parametrize("name", KNOBS)
def test_bad_values_warn_once_and_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knob = KNOBS[name]
    expected = f"an integer from {knob.minimum} to {knob.maximum}"
    beyond = [str(knob.minimum - 1), str(-(10**30)), str(knob.maximum + 1), str(2**64)]
    for bad in (*NO_NUMBERS, *beyond):
        tuning._warned.clear()
        monkeypatch.setenv(knob.variable, f" {bad}")
        words = _refused(knob.variable, expected, bad, f"{knob.default} is used")
        with pytest.warns(JitGemmWarning, match=words):
            assert environment(name) == knob.default
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert environment(name) == knob.default


def test_every_value_of_a_knob_fits_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers read it as a 64-bit number of pauses.
    knob = KNOBS["spin_us"]
    for value in (knob.minimum, knob.maximum):
        monkeypatch.setenv(knob.variable, str(value))
        pool = Pool(0, lambda _: None)
        monkeypatch.setattr(pool, "_main", lambda _: None)
        pool.ensure(2)
        block = pool._block
        assert block is not None
        assert block.view("i8")[POOL.slot("spins")] >= value


def test_a_warning_for_one_variable_does_not_silence_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("spin_us", "gil_flops"):
        monkeypatch.setenv(KNOBS[name].variable, "junk")
        with pytest.warns(JitGemmWarning, match=KNOBS[name].variable):
            environment(name)


def test_integers_in_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert integer("some_number", 1, 9, "none is used") is None
    monkeypatch.setenv("JITGEMM_SOME_NUMBER", "5")
    assert integer("some_number", 1, 9, "") == 5
    assert integer("some_number", 5, 5, "") == 5
    for bounds in ((6, 9), (1, 4)):
        tuning._warned.clear()
        expected = f"an integer from {bounds[0]} to {bounds[1]}"
        words = _refused("JITGEMM_SOME_NUMBER", expected, "5", "none is used")
        with pytest.warns(JitGemmWarning, match=words):
            assert integer("some_number", *bounds, "none is used") is None


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text("some_name") is None
    for blank in ("", " ", "\t \n"):
        monkeypatch.setenv("JITGEMM_SOME_NAME", blank)
        assert text("some_name") is None
    for spelled in ("value", " value", "value\n"):
        monkeypatch.setenv("JITGEMM_SOME_NAME", spelled)
        assert text("some_name") == "value"


# -- on and off -----------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [True, False])
def test_switches(default: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    assert switch("some_switch", default=default) is default
    for blank in ("", "  "):
        monkeypatch.setenv("JITGEMM_SOME_SWITCH", blank)
        assert switch("some_switch", default=default) is default
    words = {True: ("on", "yes", "true", "1"), False: ("off", "no", "false", "0")}
    for value, word in ((v, w) for v, ws in words.items() for w in ws):
        for spelled in (word, word.upper(), word.title(), f" {word}\n"):
            monkeypatch.setenv("JITGEMM_SOME_SWITCH", spelled)
            assert switch("some_switch", default=default) is value
    expected = "one of on, yes, true, 1, off, no, false, 0"
    instead = f"{'on' if default else 'off'} is used"
    for bad in ("maybe", "2", "00", "-1", "y", "n", "disable", "none", "of f", "0.0", "\uff10"):
        tuning._warned.clear()
        monkeypatch.setenv("JITGEMM_SOME_SWITCH", bad)
        words_of_warning = _refused("JITGEMM_SOME_SWITCH", expected, bad, instead)
        with pytest.warns(JitGemmWarning, match=words_of_warning):
            assert switch("some_switch", default=default) is default
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert switch("some_switch", default=default) is default


# -- folders --------------------------------------------------------------------------------------


def test_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder("some_dir") is None
    monkeypatch.setenv("HOME", "/home/of/somebody")
    monkeypatch.setenv("WHERE", "deep/er")
    home = Path("/home/of/somebody")
    for given, want in {
        "": None,
        "  ": None,
        "/a/b": Path("/a/b"),
        "a b/c ": Path("a b/c "),
        "~": home,
        "~/x": home / "x",
        "$HOME/x": home / "x",
        "${HOME}/x": home / "x",
        "~/$WHERE/x": home / "deep/er/x",
        "/a/~/b": Path("/a/~/b"),
        "/a~": Path("/a~"),
        "/100$": Path("/100$"),
        "$WHERE": Path("deep/er"),
    }.items():
        monkeypatch.setenv("JITGEMM_SOME_DIR", given)
        assert folder("some_dir") == want, given


@pytest.mark.parametrize("given", ["$NOBODY_SET/x", "/x/${NOBODY_SET}", "$EMPTY/x", "${a-b}", "${}",
                                   "~nobody-of-this-name/x"])  # fmt: skip
def test_a_folder_that_cannot_be_meant(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOBODY_SET", raising=False)
    monkeypatch.setenv("JITGEMM_SOME_DIR", given)
    what = "a home where ~ stands"
    if "$" in given:
        what = f"{given.replace('/x', '')} to be set".replace("/${", "${")
    words = _refused("JITGEMM_SOME_DIR", f"a folder, and {what}", given,
                     "the default folder is used")  # fmt: skip
    with pytest.warns(JitGemmWarning, match=words):
        assert folder("some_dir") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folder("some_dir") is None


# -- how many threads -----------------------------------------------------------------------------

OWN, NUM, LIMIT = "JITGEMM_NUM_THREADS", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT"
OPENMP = [
    ("4", 4), ("1", 1), (" 4 ", 4), ("+4", 4), ("4,2", 4), ("3 , 2,\t1", 3), ("100000", 100_000),
    ("007", 7), (str(2**70), 2**70),
    # No list of positive numbers: OpenMP leaves open what it means; here it is as if it were unset.
    ("", None), (" ", None), ("0", None), ("-2", None), ("0,2", None), ("2,0", None),
    ("2,-1", None), ("2,", None), (",2", None), ("2,,2", None), ("2;2", None), ("2 2", None),
    ("many", None), ("2,many", None), ("1.5", None), ("1e3", None), ("0x2", None), ("1_0", None),
    ("\u0663", None), ("dynamic", None), ("-", None), ("9" * 5000, None),
]  # fmt: skip


@pytest.mark.parametrize("variable", [NUM, LIMIT])
@pytest.mark.parametrize("value, want", OPENMP)
def test_threads_as_openmp_says(
    variable: str, value: str, want: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads_asked(1024) is None
    monkeypatch.setenv(variable, value)
    # Without a warning: the variables are not this package's.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert threads_asked(1024) == (None if want is None else (want, variable))


@pytest.mark.parametrize(
    "variables, want",
    [
        ({OWN: "3"}, (3, OWN)),
        ({OWN: "3", NUM: "2"}, (3, OWN)),
        ({OWN: "3", NUM: "5", LIMIT: "1"}, (3, OWN)),
        ({OWN: "", NUM: "2"}, (2, NUM)),
        ({OWN: " ", NUM: "2,8"}, (2, NUM)),
        ({NUM: "4", LIMIT: "3"}, (3, LIMIT)),
        ({NUM: "3", LIMIT: "4"}, (3, NUM)),
        ({NUM: "3", LIMIT: "3"}, (3, NUM)),
        ({NUM: "0", LIMIT: "3"}, (3, LIMIT)),
        ({NUM: "3", LIMIT: "0"}, (3, NUM)),
        ({"MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}, None),
    ],
)
def test_which_variable_says_how_many_threads(
    variables: dict[str, str], want: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert threads_asked(1024) == want


@pytest.mark.parametrize("bad", ["0", "-1", "1025", "two", "2,2", "1e1"])
def test_a_bad_number_of_ones_own_leaves_it_to_openmp(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN, bad)
    words = _refused(OWN, "an integer from 1 to 1024", bad, "as if it were not set")
    with pytest.warns(JitGemmWarning, match=words):
        assert threads_asked(1024) is None
    monkeypatch.setenv(NUM, "2")
    assert threads_asked(1024) == (2, NUM)


def test_knobs_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        KNOBS["spin_us"].default = 3  # type: ignore[misc]


def test_messages_name_the_operand_what_was_expected_and_what_came() -> None:
    assert message("b", "4 rows", "3") == "jitgemm: b: expected 4 rows, got 3"
    assert issubclass(IsaError, RuntimeError)
    assert issubclass(JitGemmWarning, UserWarning)
