"""Lossless channel pruning for Keras: ResRep (ICCV 2021)."""

import pathlib as _pathlib

# `models/` and `flags/` stand beside this package in a checkout and inside it when
# installed; Python finds them as `resrep_tf.models` and `resrep_tf.flags` in both.
if not (_pathlib.Path(__file__).parent / "models").is_dir():
    __path__.append(str(_pathlib.Path(__file__).resolve().parent.parent))

from resrep_tf.baselines import ablation, criteria, minimal
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.budget.measuring import measure_latency
from resrep_tf.convert import ConversionReport, convert
from resrep_tf.explain import Explanation, count_flops, explain
from resrep_tf.export import ExportReport, export
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.tracing import TraceReport, trace
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
from resrep_tf.version import __version__

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
    "report_html",
    "shrink",
    "slicing",
    "trace",
    "wrap",
]
