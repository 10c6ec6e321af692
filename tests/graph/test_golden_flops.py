"""FLOPs of networks whose numbers are published."""

import keras
import pytest

import resrep_tf
from resrep_tf import models
from resrep_tf.budget.flops import FlopsMeter


@pytest.mark.parametrize(
    ("name", "flops"),
    [("resnet50", 4_089_184_256), ("mobilenet", 568_740_352)],
)
def test_flops_of_the_papers_imagenet_models(name, flops):
    assert resrep_tf.count_flops(models.build(name)) == flops


@pytest.mark.parametrize(("name", "millions"), [("resnet56", 126), ("resnet110", 253)])
def test_flops_of_the_papers_cifar_models(name, millions):
    model = models.build(name, shortcut="projection")
    assert round(resrep_tf.count_flops(model) / 1e6) == millions


def test_flops_of_the_authors_pruned_resnet50():
    """Their published widths leave 0.4546 of the FLOPs."""
    widths = [
        *[(22, 22), (23, 36), (1, 1)],
        *[(62, 97), (16, 49), (38, 68), (41, 92)],
        *[(189, 204), (69, 145), (65, 139), (64, 94), (67, 89), (86, 95)],
        *[(473, 488), (171, 281), (511, 512)],
    ]
    pruner = resrep_tf.wrap(models.build("resnet50"), models.targets("resnet50"))
    assert len(pruner.compactors) == 2 * len(widths)
    meter = FlopsMeter.of(pruner.graph)
    flat = [width for pair in widths for width in pair]
    for channels, width in zip(pruner.compactor_channels(), flat, strict=True):
        for channel in channels[width:]:
            meter.remove(int(channel))
    assert round(meter.current / meter.total, 4) == 0.4546


def test_flops_of_keras_resnet50():
    model = keras.applications.ResNet50(weights=None)
    assert round(resrep_tf.count_flops(model) / 1e9, 2) == 3.86
