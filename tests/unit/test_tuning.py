"""Knobs: defaults with a provenance, the environment, bad values that warn once."""

from __future__ import annotations

import os
import warnings

import pytest

from jitgemm import tuning
from jitgemm.errors import IsaError, JitGemmWarning, message
from jitgemm.tuning import KNOBS, environment, integer, text


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_warned", set())
    for name in list(os.environ):
        if name.startswith("JITGEMM_"):
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
    for value in (knob.minimum, knob.default + 1, 10**15):
        monkeypatch.setenv(knob.variable, str(value))
        assert environment(name) == value
    monkeypatch.setenv(knob.variable, " 77 ")
    assert environment(name) == 77
    monkeypatch.setenv(knob.variable, "")
    assert environment(name) == knob.default


@pytest.mark.parametrize("name", KNOBS)
@pytest.mark.parametrize("bad", ["many", "1.5", "1e3", "0x10", "-1", "--", "1 2"])
def test_bad_values_warn_once_and_are_ignored(
    name: str, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    knob = KNOBS[name]
    monkeypatch.setenv(knob.variable, bad)
    with pytest.warns(JitGemmWarning, match=f"^jitgemm: {knob.variable}: .*; ignored$"):
        assert environment(name) == knob.default
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert environment(name) == knob.default


def test_a_warning_for_one_variable_does_not_silence_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("spin_us", "gil_flops"):
        monkeypatch.setenv(KNOBS[name].variable, "junk")
        with pytest.warns(JitGemmWarning, match=KNOBS[name].variable):
            environment(name)


def test_integers_in_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert integer("some_number", 1) is None
    monkeypatch.setenv("JITGEMM_SOME_NUMBER", "5")
    assert integer("some_number", 1) == 5
    assert integer("some_number", 5, maximum=5) == 5
    with pytest.warns(JitGemmWarning, match="^jitgemm: JITGEMM_SOME_NUMBER: 5 is out of range"):
        assert integer("some_number", 6) is None
    tuning._warned.clear()
    with pytest.warns(JitGemmWarning, match="5 is out of range"):
        assert integer("some_number", 1, maximum=4) is None


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text("some_name") is None
    monkeypatch.setenv("JITGEMM_SOME_NAME", "")
    assert text("some_name") is None
    monkeypatch.setenv("JITGEMM_SOME_NAME", "value")
    assert text("some_name") == "value"


def test_knobs_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        KNOBS["spin_us"].default = 3  # type: ignore[misc]


def test_messages_name_the_operand_what_was_expected_and_what_came() -> None:
    assert message("b", "4 rows", "3") == "jitgemm: b: expected 4 rows, got 3"
    assert issubclass(IsaError, RuntimeError)
    assert issubclass(JitGemmWarning, UserWarning)
