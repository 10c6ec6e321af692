"""Latency: models take turns."""

from resrep_tf.evaluate import latency


def test_latency_takes_turns(monkeypatch):
    monkeypatch.setattr(latency, "MOST", 6)
    calls = []
    models = {
        name: lambda images, name=name: calls.append((name, len(images))) or images
        for name in ("before", "after")
    }
    seconds = latency.measure(models, (2, 2, 1))
    assert list(seconds) == ["before", "after"]
    assert all(set(times) == {1, 32} for times in seconds.values())
    assert all(time > 0 for times in seconds.values() for time in times.values())
    timed = calls[6:18]
    assert timed == [("before", 1), ("after", 1)] * 6
