"""Lossless channel pruning for Keras: ResRep (ICCV 2021)."""

import signal as _signal
import sys as _sys

# While `python -m` imports the packages around a command, `sys.argv` begins with "-m".
# From here on, Ctrl-C ends the process without a stack trace, until the command handles
# Ctrl-C itself.
_is_command = _sys.argv[:1] == ["-m"] and any(__name__ in a for a in _sys.orig_argv)
if _is_command and _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import importlib as _importlib
import pathlib as _pathlib
import types as _types
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

# `models/` and `flags/` are beside this package in a checkout and inside it when
# installed. Python finds them as `resrep_tf.models` and `resrep_tf.flags` in both
# cases.
if not (_pathlib.Path(__file__).parent / "models").is_dir():
    __path__.append(str(_pathlib.Path(__file__).resolve().parent.parent))

from resrep_tf.version import __version__

if _TYPE_CHECKING:
    from resrep_tf.baselines import ablation, criteria, minimal
    from resrep_tf.budget.latency_table import LatencyTable
    from resrep_tf.budget.measuring import measure_latency
    from resrep_tf.convert import ConversionReport, convert
    from resrep_tf.explain import Explanation, count_flops, explain
    from resrep_tf.export import ExportReport, export
    from resrep_tf.graph.channel_graph import ChannelGraph
    from resrep_tf.graph.tracing import TraceReport, trace
    from resrep_tf.prune import PruneReport, prune
    from resrep_tf.pruning.callbacks import ChannelSelection
    from resrep_tf.pruning.compactor import Compactor
    from resrep_tf.pruning.model import ResRepModel
    from resrep_tf.pruning.planning import plan
    from resrep_tf.pruning.wrap import wrap
    from resrep_tf.report import figures
    from resrep_tf.report import run_page as report_html
    from resrep_tf.selection.plan import Plan
    from resrep_tf.shrinking.shrinking import ShrinkReport, shrink
    from resrep_tf.surgery import slicing
    from resrep_tf.teacher.distillation import Distillation, Student

# The modules of the public names. A command imports them at their first use, so that it
# checks its flags before TensorFlow is imported, which takes seconds.
_WHERE = {
    "ChannelGraph": "resrep_tf.graph.channel_graph.ChannelGraph",
    "ChannelSelection": "resrep_tf.pruning.callbacks.ChannelSelection",
    "Compactor": "resrep_tf.pruning.compactor.Compactor",
    "ConversionReport": "resrep_tf.convert.ConversionReport",
    "Distillation": "resrep_tf.teacher.distillation.Distillation",
    "Explanation": "resrep_tf.explain.Explanation",
    "ExportReport": "resrep_tf.export.ExportReport",
    "LatencyTable": "resrep_tf.budget.latency_table.LatencyTable",
    "Plan": "resrep_tf.selection.plan.Plan",
    "PruneReport": "resrep_tf.prune.PruneReport",
    "ResRepModel": "resrep_tf.pruning.model.ResRepModel",
    "ShrinkReport": "resrep_tf.shrinking.shrinking.ShrinkReport",
    "Student": "resrep_tf.teacher.distillation.Student",
    "TraceReport": "resrep_tf.graph.tracing.TraceReport",
    "ablation": "resrep_tf.baselines.ablation",
    "convert": "resrep_tf.convert.convert",
    "count_flops": "resrep_tf.explain.count_flops",
    "criteria": "resrep_tf.baselines.criteria",
    "explain": "resrep_tf.explain.explain",
    "export": "resrep_tf.export.export",
    "figures": "resrep_tf.report.figures",
    "measure_latency": "resrep_tf.budget.measuring.measure_latency",
    "minimal": "resrep_tf.baselines.minimal",
    "plan": "resrep_tf.pruning.planning.plan",
    "prune": "resrep_tf.prune.prune",
    "report_html": "resrep_tf.report.run_page",
    "shrink": "resrep_tf.shrinking.shrinking.shrink",
    "slicing": "resrep_tf.surgery.slicing",
    "trace": "resrep_tf.graph.tracing.trace",
    "wrap": "resrep_tf.pruning.wrap.wrap",
}

__all__ = [
    "ChannelGraph",
    "ChannelSelection",
    "Compactor",
    "ConversionReport",
    "Distillation",
    "Explanation",
    "ExportReport",
    "LatencyTable",
    "Plan",
    "PruneReport",
    "ResRepModel",
    "ShrinkReport",
    "Student",
    "TraceReport",
    "__version__",
    "ablation",
    "convert",
    "count_flops",
    "criteria",
    "explain",
    "export",
    "figures",
    "measure_latency",
    "minimal",
    "plan",
    "prune",
    "report_html",
    "shrink",
    "slicing",
    "trace",
    "wrap",
]


class _Package(_types.ModuleType):
    def __getattr__(self, name: str) -> _Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _WHERE[name].rpartition(".")
        found = getattr(_importlib.import_module(module), attribute, None)
        if found is None:  # A module that its package does not import.
            found = _importlib.import_module(_WHERE[name])
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: _Any) -> None:
        # Python sets a submodule as an attribute here, and its name may be a
        # function's.
        if name not in _WHERE or not isinstance(value, _types.ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


_sys.modules[__name__].__class__ = _Package

# A command checks its flags first. In all other cases, all classes are imported at
# once: Keras must know those of this package before it can load a model that has them.
if not _is_command:
    _importlib.import_module("resrep_tf.classes")
