"""Lossless channel pruning for Keras: ResRep (ICCV 2021)."""

import pathlib as _pathlib
import warnings as _warnings

# `models/` and `flags/` stand beside this package in a checkout and inside it when
# installed; Python finds them as `resrep_tf.models` and `resrep_tf.flags` in both.
if not (_pathlib.Path(__file__).parent / "models").is_dir():
    __path__.append(str(_pathlib.Path(__file__).resolve().parent.parent))

# `python -m resrep_tf.convert` runs a module that this package has imported already
# for its function, which is harmless here.
_warnings.filterwarnings("ignore", message="'resrep_tf.*found in sys.modules")

from resrep_tf.callbacks import ChannelSelection
from resrep_tf.compactor import Compactor
from resrep_tf.conversion_report import ConversionReport
from resrep_tf.convert import convert
from resrep_tf.explain import Explanation, count_flops, explain
from resrep_tf.graph import ChannelGraph
from resrep_tf.model import ResRepModel
from resrep_tf.planning import Plan
from resrep_tf.schedule import plan
from resrep_tf.version import __version__
from resrep_tf.wrap import wrap

__all__ = [
    "ChannelGraph",
    "ChannelSelection",
    "Compactor",
    "ConversionReport",
    "Explanation",
    "Plan",
    "ResRepModel",
    "__version__",
    "convert",
    "count_flops",
    "explain",
    "plan",
    "wrap",
]
