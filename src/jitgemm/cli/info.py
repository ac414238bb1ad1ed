"""``jitgemm info``: what jitgemm found on this machine and what it chose."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jitgemm
from jitgemm import tuning
from jitgemm.cli.tables import Table, byte_size, show
from jitgemm.isa.tables import BY_NAME
from jitgemm.jit import cache
from jitgemm.jit.target import NO_ISA, available
from jitgemm.kernels import registry
from jitgemm.planner.machine import usable_cpus

__all__ = ["add_parser", "describe"]


def add_parser(commands: Any) -> None:
    """Add the command to argparse's ``commands``."""
    parser = commands.add_parser("info", help="what jitgemm found on this machine and chose")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def _objects(folder: str | None) -> dict[str, int]:
    files = [x for x in cache.stored(Path(folder)) if x.finished] if folder else []
    return {"objects": len(files), "bytes": sum(x.nbytes for x in files)}


def describe() -> dict[str, Any]:
    """``show_config()`` and what goes with it, made of JSON's types."""
    config = jitgemm.show_config()
    folder, generates = config.pop("cache_dir"), config["isa"] != NO_ISA
    compiled, values = config.pop("kernels"), config.pop("knobs")
    return {
        "jitgemm": jitgemm.__version__,
        **config,
        "isas": {isa.name: generates and available(isa) for isa in BY_NAME.values()},
        "usable_processors": usable_cpus(),
        "cache": {"folder": folder, **_objects(folder)},
        "kernels": [
            {"element": f"c{2 * element.bits}" if components == 2 else element.name,
             "isa": isa.name,
             "mr": tile.mr, "nr": tile.nr_regs * isa.lanes(element) // components,
             "available": generates and available(isa)}
            for element, isa, components, tile in registry.rows()
        ],
        "compiled": [{"unit": name, "source": source} for name, source in compiled],
        "knobs": {
            name: {"value": values[name], "default": knob.default, "variable": knob.variable,
                   "meaning": knob.meaning, "provenance": knob.provenance}
            for name, knob in tuning.KNOBS.items()
        },
    }  # fmt: skip


def _machine(facts: dict[str, Any]) -> Table:
    caches, folder = facts["caches"], facts["cache"]
    levels = ", ".join(f"{level} {byte_size(caches[level])}" for level in ("l1d", "l2", "l3"))
    most = byte_size(facts["knobs"]["cache_bytes"]["value"])
    held = f"{folder['objects']} objects, {byte_size(folder['bytes'])} of {most}"
    rows = [
        ("CPU", facts["cpu"]),
        ("triple", facts["triple"]),
        ("LLVM", facts["llvm"]),
        ("instruction set", facts["isa"]),
        ("  usable here", ", ".join(n for n, has in facts["isas"].items() if has) or "none"),
        ("  not usable", ", ".join(n for n, has in facts["isas"].items() if not has) or "none"),
        ("code generation", facts["jit_unavailable"] or "yes"),
        ("BLAS", facts["blas"]),
        ("caches", f"{levels} ({caches['source']})"),
        ("threads", f"{facts['threads']} of {facts['usable_processors']} usable processors"),
        ("  by", facts["threads_source"]),
        ("native entry", "yes" if facts["native_entry"] else "no"),
        ("cache folder", f"{folder['folder']}: {held}" if folder["folder"] else "none"),
    ]
    return Table(f"jitgemm {facts['jitgemm']}", ("what", "found"), rows)


def run(options: argparse.Namespace) -> int:
    """Print it."""
    facts = describe()
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    show(_machine(facts))
    kernels = [
        (k["element"], k["isa"], f"{k['mr']} x {k['nr']}", "yes" if k["available"] else "no")
        for k in facts["kernels"]
    ]
    show(Table("Kernels", ("element", "instruction set", "tile", "runs here"), kernels))
    knobs = [
        (k["variable"], str(k["value"]), str(k["default"]), k["provenance"])
        for k in facts["knobs"].values()
    ]
    show(Table("Knobs", ("variable", "value", "default", "provenance"), knobs))
    return 0
