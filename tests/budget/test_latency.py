"""Latency by the sum of measured operations, with a runtime of made-up times."""

import json
import math

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
import resrep_tf.models
from resrep_tf.budget import points
from resrep_tf.budget.latency import LatencyMeter
from resrep_tf.budget.latency_table import LatencyTable, OperationTimes
from resrep_tf.budget.measuring import measure_latency
from resrep_tf.budget.operations import build_whole, operations
from resrep_tf.budget.parameters import parameter_terms
from support.latency import made_up_table, wide_model
from support.models.networks import NETWORKS
from support.models.small import small_model

CALL = 1e-4  # Seconds that a call takes on the made-up runtime.


class Formula:
    """A runtime whose clock is advanced by a formula of the layers' widths."""

    name = "formula"

    def __init__(self, bundle=1, share=1.0, repeats=True):
        self.now, self.bundle, self.share = 0.0, bundle, share
        self.repeats = repeats

    def versions(self):
        return {"formula": "1"}

    def clock(self):
        return self.now

    def prepare(self, models, batch_size):
        return [self._run(model, batch_size) for model in models]

    def _run(self, model, batch_size):
        seconds = CALL + batch_size * sum(map(self.seconds, model.layers))

        def run():
            self.now += seconds

        return run

    def filled(self, width):
        full = math.ceil(width / self.bundle) * self.bundle
        return width + self.share * (full - width)

    def seconds(self, layer):
        if isinstance(layer, (L.Conv2D, L.Dense)):
            *taps, inputs, outputs = layer.kernel.shape
            return 1e-9 * math.prod(taps) * self.filled(inputs) * self.filled(outputs)
        if isinstance(layer, (L.BatchNormalization, L.Add)):
            return 1e-9 * layer.output.shape[-1]
        return 0.0


@pytest.fixture(scope="module")
def measured():
    model = wide_model()
    with pytest.MonkeyPatch.context() as patch:
        # Times are bilinear in the widths, so that few points are enough.
        patch.setattr(points, "LEVELS", (1.0,))
        patch.setattr(points, "SHORT", (8,))
        runtime = Formula(repeats=False)
        return model, measure_latency(model, runtime, threads=1, verbose=False)


def whole_seconds(graph, keep, runtime):
    (run,) = runtime.prepare([build_whole(graph, keep)], 1)
    begin = runtime.clock()
    run()
    return runtime.clock() - begin


@pytest.mark.parametrize("seed", range(5))
def test_sum_of_operations_is_the_whole_model(measured, seed):
    model, table = measured
    graph = resrep_tf.ChannelGraph(model)
    keep = np.ones(graph.num_channels, bool)
    rng = np.random.default_rng(seed)
    for space in graph.spaces:
        if space.prunable:
            keep[rng.choice(space.channels, space.width // 3, replace=False)] = False
    expected = whole_seconds(graph, keep, Formula())
    # The formula is bilinear in the widths, so interpolation is exact.
    assert table.predict(graph, keep) == pytest.approx(expected, rel=1e-6)


def test_checks_tell_how_good_the_prediction_is(measured):
    _, table = measured
    assert next(iter(table.checks)) == "all channels"
    assert list(table.checks)[-1] == "random widths"
    for check in table.checks.values():
        assert check["predicted"] == pytest.approx(check["measured"], rel=1e-6)
    assert table.overhead == pytest.approx(CALL)
    assert "Latency of `wide` on formula" in str(table)
    assert "(1.00)" in str(table)


def test_meter_agrees_with_predictions_in_any_order(measured):
    model, table = measured
    graph = resrep_tf.ChannelGraph(model)
    meter = LatencyMeter(table, graph)
    free = [c for s in graph.spaces if s.prunable for c in s.channels.tolist()]
    rng = np.random.default_rng(0)
    ends = set()
    for _ in range(3):
        meter.reset()
        assert meter.current == meter.total
        keep = np.ones(graph.num_channels, bool)
        for channel in rng.permutation(free).tolist()[: len(free) // 2]:
            before, cost = meter.current, meter.cost(channel)
            assert meter.current == before
            meter.remove(channel)
            keep[channel] = False
            assert meter.current == before - cost
            assert meter.cost(channel) == 0
        assert meter.seconds == pytest.approx(table.predict(graph, keep), rel=1e-9)
    for order in (free[:40], free[:40][::-1]):
        meter.reset()
        for channel in order:
            meter.remove(channel)
        ends.add(meter.current)
    assert len(ends) == 1  # Whole picoseconds: exact, not only close.


def test_batchnorms_and_activations_belong_to_their_layer(measured):
    model, _ = measured
    found = operations(resrep_tf.ChannelGraph(model))
    assert [op.name for op in found] == [
        "conv1", "conv2", "conv3", "add", "pool", "logits",
    ]  # fmt: skip
    assert found[0].key.startswith("Conv2D(kernel_size=3x3")
    assert "bias) + ReLU" in found[0].key
    assert found[1].key.split(" on ")[0].endswith("+ relu")
    assert found[0].widths == (3, 64)


def test_wrapped_model_has_the_same_operations(measured):
    model, table = measured
    plain = resrep_tf.ChannelGraph(model)
    pruner = resrep_tf.wrap(model, targets="all")
    meters = [LatencyMeter(table, graph) for graph in (plain, pruner.graph)]
    assert meters[0].total == meters[1].total
    for plain_ids, ids in zip(
        [s.channels for s in plain.spaces if s.prunable],
        pruner.compactor_channels(),
        strict=True,
    ):
        for meter, channels in zip(meters, (plain_ids, ids), strict=True):
            for channel in channels[::2].tolist():
                meter.remove(channel)
    assert meters[0].current == meters[1].current < meters[0].total


@pytest.mark.parametrize("bundle", (32, pytest.param(8, marks=pytest.mark.slow)))
def test_bundles_are_found(bundle):
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(128, 3, name="conv")(inputs)
    x = L.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, L.Dense(4, name="logits")(x))
    runtime = Formula(bundle)
    table = measure_latency(model, runtime, threads=1, verbose=False)
    graph = resrep_tf.ChannelGraph(model)
    meter = LatencyMeter(table, graph)
    channels = graph.spaces[0].channels.tolist()
    assert meter.cost(channels[0]) < meter.total / 1e4
    stops = meter.stops(np.array(channels), np.arange(127, 0, -1))
    assert stops.tolist() == [*range(128 - bundle, 0, -bundle), 1]
    assert meter.current == meter.total
    for channel in channels[:bundle]:
        meter.remove(channel)
    keep = np.ones(graph.num_channels, bool)
    keep[channels[:bundle]] = False
    expected = whole_seconds(graph, keep, Formula(bundle))
    assert meter.seconds == pytest.approx(expected, rel=1e-3)


def test_every_width_is_worth_stopping_at_without_bundles(measured):
    model, table = measured
    graph = resrep_tf.ChannelGraph(model)
    meter = LatencyMeter(table, graph)
    for space in graph.spaces:
        if space.prunable:
            counts = np.arange(space.width - 1, 2, -1)
            assert meter.stops(space.channels, counts).tolist() == counts.tolist()


def test_round_trip_on_disk(measured, tmp_path):
    model, table = measured
    path = tmp_path / "latency.json"
    table.save(path)
    again = LatencyTable.load(path)
    graph = resrep_tf.ChannelGraph(model)
    assert again.predict(graph) == pytest.approx(table.predict(graph), rel=1e-3)
    for name in ("model", "runtime", "batch_size", "threads", "machine", "versions"):
        assert getattr(again, name) == getattr(table, name)
    assert again.input_shapes == ((8, 8, 3),)
    content = json.loads(path.read_text())
    assert content["format"] == 2 and content["machine"]["processor"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: text.replace('"format": 2', '"format": 99'),
        lambda text: text.replace('"shares": [', '"shares": [1, '),
        lambda text: text.replace('"overhead"', '"overhaed"'),
        lambda text: text.replace('"widths": [', '"widths": [[9],'),
    ],
)
def test_damaged_file_is_refused(measured, tmp_path, damage):
    path = tmp_path / "latency.json"
    measured[1].save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"no latency table, or .* damaged.*Received:"):
        LatencyTable.load(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be read.*Received: path="):
        LatencyTable.load(tmp_path / "nowhere.json")


def test_table_of_another_model_or_runtime_is_refused(measured):
    _, table = measured
    with pytest.raises(ValueError, match=r"another model.*`wide`.*the model `small`"):
        LatencyMeter(table, resrep_tf.ChannelGraph(small_model()))
    with pytest.raises(ValueError, match=r"does not know .* with widths \(3, 128\)"):
        LatencyMeter(table, resrep_tf.ChannelGraph(wide_model(128)))
    with pytest.raises(ValueError, match=r"on 'formula', .* 'litert'.*Received:"):
        table.check_runtime(["litert"])
    table.check_runtime(["litert", "formula"])


def test_errors_name_the_argument(measured):
    model, table = measured
    with pytest.raises(ValueError, match="Received: runtime='onnx'"):
        measure_latency(model, "onnx")
    with pytest.raises(ValueError, match="Received: batch_size=0"):
        measure_latency(model, batch_size=0)
    meter = LatencyMeter(table, resrep_tf.ChannelGraph(model))
    with pytest.raises(ValueError, match="Received: channel=-1"):
        meter.cost(-1)
    channel = int(resrep_tf.ChannelGraph(model).spaces[0].channels[0])
    meter.remove(channel)
    with pytest.raises(ValueError, match=r"already.*Received: channel="):
        meter.remove(channel)


def test_measured_points_are_hit_and_bundles_fill_between_them():
    times = OperationTimes(((16, 32),), np.array([1.0, 2.0]), ({16: 1.0},))
    assert [times.at([w]) for w in (16, 17, 31, 32)] == [1.0, 2.0, 2.0, 2.0]
    half = OperationTimes(((16, 32),), np.array([1.0, 2.0]), ({16: 0.5},))
    assert half.at([24]) == pytest.approx(1.75)
    assert half.table[24] == pytest.approx(1.75e12)
    assert half.table.shape == (33,)
    # From a point within a bundle, the rest of that bundle is free.
    within = OperationTimes(((1, 48),), np.array([1.0, 3.0]), ({16: 1.0},))
    assert [within.at([w]) for w in (1, 16, 17, 32, 33)] == [1.0, 1.0, 2.0, 2.0, 3.0]
    # A point within a bundle that takes less time is a bundle of its own.
    smaller = OperationTimes(((16, 32),), np.array([1.0, 2.0]), ({32: 1.0},))
    assert [smaller.at([w]) for w in (16, 17, 32)] == [1.0, 2.0, 2.0]
    # Bundles that contradict what was measured say nothing.
    odd = OperationTimes(((1, 48),), np.array([1.0, 3.0]), ({16: 4.0},))
    assert odd.at([1 + 47 / 2]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "runtime",
    [
        "litert",
        *(pytest.param(r, marks=pytest.mark.slow) for r in ("saved_model", "keras")),
    ],
)
def test_real_runtime(runtime):
    inputs = keras.Input((32, 32, 3))
    x = L.Conv2D(64, 3, padding="same", name="conv1")(inputs)
    x = L.BatchNormalization()(x)
    x = L.ReLU()(x)
    x = L.Conv2D(64, 3, padding="same", activation="relu", name="conv2")(x)
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    table = measure_latency(model, runtime, threads=1, rounds=5, verbose=False)
    graph = resrep_tf.ChannelGraph(model)
    meter = LatencyMeter(table, graph)
    (space,) = [s for s in graph.spaces if s.prunable]
    for channel in space.channels[:48].tolist():
        meter.remove(channel)
    assert 0 < meter.current < 0.9 * meter.total
    check = table.checks["all channels"]
    assert 0.4 < check["predicted"] / check["measured"] < 2.5


@pytest.mark.parametrize(
    "name",
    [
        "resnet20",
        pytest.param("MobileNetV2", marks=pytest.mark.slow),
        pytest.param("MobileNetV3Small", marks=pytest.mark.slow),
    ],
)
def test_every_operation_can_be_built_alone_and_the_whole_too(name):
    known = NETWORKS.get(name)
    model = known.build() if known else resrep_tf.models.build(name)
    graph = resrep_tf.ChannelGraph(model)
    found = operations(graph)
    for op in {op.key: op for op in found}.values():
        widths = [max(1, width // 2) for width in op.widths]
        assert op.build(widths).outputs[0].shape[0] is None
    keep = np.ones(graph.num_channels, bool)
    for space in graph.spaces:
        if space.prunable:
            keep[space.channels[1::2]] = False
    slim = build_whole(graph, keep)
    assert slim.count_params() == sum(
        term.macs(keep) for term in parameter_terms(graph)
    )
    meter = LatencyMeter(made_up_table(graph), graph)
    for channel in np.flatnonzero(~keep).tolist():
        meter.remove(channel)
    table = made_up_table(graph)
    assert meter.seconds == pytest.approx(table.predict(graph, keep), rel=1e-6)
