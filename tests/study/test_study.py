"""Studies: what is compared, that it is compared fairly, and what is written."""

import csv
from pathlib import Path

import keras
import numpy as np
import pytest
from matplotlib.image import imread

import resrep_tf
from resrep_tf.cli import recipes
from resrep_tf.cli.errors import CommandError
from resrep_tf.study import cases
from resrep_tf.study import command as study
from resrep_tf.study.results import Result, Summary, as_markdown
from resrep_tf.surgery import slicing
from resrep_tf.train import settings
from resrep_tf.train.records import snapshots
from support import runs
from support.runs import call, digits_network
from support.web.browser import assert_fits_a_phone, browse, needs_chromium

EPOCHS, TARGET = 3, 0.4


def run(*arguments) -> str:
    return call(study.run, *arguments)


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    """A setting that takes seconds."""
    folder = tmp_path_factory.mktemp("study")
    model = runs.save(folder / "small.keras", digits_network)
    return [
        f"--arch={model}",
        "--targets=internal",
        f"--flops_target={TARGET}",
        "--base_epochs=2",
        f"--epochs={EPOCHS}",
        "--steps_per_epoch=15",
        f"--output={folder / 'out'}",
    ]


@pytest.fixture(scope="module")
def folder(flags) -> Path:
    return Path(flags[-1].partition("=")[2])


# === Methods against each other ===


@pytest.fixture(scope="module")
def variants(flags) -> str:
    return run("--study=variants", "--only=resrep,finetune,shrink,l2,vector", *flags)


def test_every_method_meets_the_target_within_a_channel(variants, folder):
    model = keras.models.load_model(folder / "runs" / "base-0" / "base.keras")
    whole = resrep_tf.count_flops(model)
    worth = 0
    for name, width in (("conv0", 8), ("conv1", 12)):
        less = slicing.slice_channels(model, {name: np.arange(width) > 0})
        worth = max(worth, whole - resrep_tf.count_flops(less))
    found = {row["method"]: row for row in rows(folder / "variants" / "results.csv")}
    assert list(found) == ["resrep", "finetune", "shrink", "l2", "vector"]
    assert float(found.pop("finetune")["flops_removed"]) == 0
    for method, row in found.items():
        slim = keras.models.load_model(
            folder / "runs" / f"{method}-0" / "pruned.keras", compile=False
        )
        assert resrep_tf.count_flops(slim) == int(row["flops"])
        assert TARGET * whole <= whole - int(row["flops"]) < TARGET * whole + worth


def test_all_methods_start_from_one_base(variants, folder):
    bases = [path / "base.keras" for path in (folder / "runs").iterdir()]
    weights = [keras.models.load_model(base, compile=False) for base in bases]
    for model in weights[1:]:
        for a, b in zip(weights[0].get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    found = rows(folder / "variants" / "results.csv")
    assert len({row["base_accuracy"] for row in found}) == 1


def test_results_are_written_in_all_forms(variants, folder):
    results = folder / "variants"
    assert {path.name for path in results.iterdir()} == {
        *("results.csv", "results.md", "figures", "report.html")
    }
    drawn = {"accuracies", "curves", "widths"}
    assert {path.stem for path in (results / "figures").glob("*.svg")} == drawn
    assert {path.stem for path in (results / "figures").glob("*.png")} == drawn
    # The recipe of the digits says `--noexport`.
    assert not (folder / "runs" / "resrep-0" / "saved_model").exists()
    # A page to be shown elsewhere: no paths of the machine that made it.
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "init_weights" not in page and "base.keras" not in page
    table = (results / "results.md").read_text(encoding="utf-8")
    assert "| 4) vector compactors | " in table
    assert "python -m resrep_tf.study --study=variants" in table
    assert "| 4) vector compactors | " in variants  # Printed, too.


def test_the_same_command_goes_on(variants, folder, flags):
    arguments = ["--study=variants", "--only=resrep,finetune,shrink,l2,vector", *flags]
    results = folder / "variants"
    before = {p: p.read_bytes() for p in results.rglob("*") if p.is_file()}
    printed = run(*arguments)
    assert "epoch " not in printed and "is complete" in printed
    assert {p: p.read_bytes() for p in results.rglob("*") if p.is_file()} == before


def test_a_folder_of_other_runs_is_refused(variants, flags):
    with pytest.raises(CommandError, match="holds another run: --epochs=3, now 4"):
        run("--study=variants", "--only=l2", *flags, "--epochs=4")


@needs_chromium
def test_a_browser_shows_the_page(variants, folder, tmp_path):
    page = (folder / "variants" / "report.html").read_text(encoding="utf-8")
    picture = tmp_path / "page.png"
    browse(tmp_path, page, "--window-size=1000,2000", f"--screenshot={picture}")
    pixels = np.round(255 * imread(picture)[..., :3]).astype(int)
    blue = (np.abs(pixels - (0x00, 0x72, 0xB2)).max(axis=2) < 3).mean()
    assert pixels.shape == (2000, 1000, 3)
    assert blue > 0.001  # The methods' points and the bars of the widths.
    assert_fits_a_phone(tmp_path, page)


# === Trajectory ===


@pytest.fixture(scope="module")
def trajectory(flags) -> str:
    return run("--study=trajectory", *flags)


@pytest.mark.slow
def test_pruning_costs_less_and_less(trajectory, folder):
    found = rows(folder / "trajectory" / "trajectory.csv")
    methods = {row["method"] for row in found}
    assert methods == {"resrep-saved", "lasso-0.03-saved"}
    for method in methods:
        epochs = [int(row["epoch"]) for row in found if row["method"] == method]
        assert epochs == list(range(EPOCHS + 1))
    first, *_, last = [row for row in found if row["method"] == "resrep-saved"]
    # At the start, a compactor is the identity; at the end, what goes is zero.
    assert float(first["surviving"]) + float(first["pruned"]) == 8 + 12
    assert float(first["pruned"]) > 0 == float(last["pruned"])
    assert last["accuracy"] == last["pruned_accuracy"]
    (ended,) = [
        row
        for row in rows(folder / "trajectory" / "results.csv")
        if row["method"] == "resrep-saved"
    ]
    assert ended["accuracy"] == last["accuracy"]


@pytest.mark.slow
def test_the_lasso_ends_with_its_minimal_structure(trajectory, folder):
    results = rows(folder / "trajectory" / "results.csv")
    (lasso,) = [row for row in results if row["method"] == "lasso-0.03-saved"]
    found = rows(folder / "trajectory" / "trajectory.csv")
    last = [row for row in found if row["method"] == "lasso-0.03-saved"][-1]
    assert float(lasso["accuracy"]) >= float(last["accuracy"])
    assert lasso["accuracy"] == last["pruned_accuracy"]
    assert float(lasso["flops_removed"]) > 0


@pytest.mark.slow
def test_the_trajectory_is_drawn(trajectory, folder):
    drawn = {path.stem for path in (folder / "trajectory" / "figures").glob("*.svg")}
    assert drawn == {"recovery", "magnitudes", "norms"}


def test_snapshots_of_a_run_that_goes_on_are_kept(tmp_path):
    model = digits_network()
    first = model.get_weights()
    for _ in range(2):
        callback = snapshots.Snapshots(tmp_path, 2)
        callback.set_model(model)
        callback.on_train_begin()
        model.set_weights([weight + 1 for weight in model.get_weights()])
    for epoch in range(3):
        callback.on_epoch_end(epoch)
    epochs, weights = zip(*snapshots.read(tmp_path), strict=True)
    assert epochs == (0, 2)
    np.testing.assert_array_equal(weights[0][0], first[0])
    np.testing.assert_array_equal(weights[1][0], model.get_weights()[0])


# === What is compared ===


@pytest.mark.parametrize("preset", cases.PRESETS)
@pytest.mark.parametrize("name", cases.STUDIES)
def test_every_method_is_a_valid_training_run(name, preset, tmp_path):
    weights = tmp_path / "base.keras"
    weights.touch()
    recipe = cases.RECIPES[preset][name]
    assert recipe in recipes.names()
    found = cases.cases(name, preset)
    names = [case.name for case in found]
    assert len(set(names)) == len(names)
    for case in found:
        settings.parse([f"--recipe={recipe}", f"--init_weights={weights}", *case.flags])
        if case.like is not None:  # It comes first: its FLOPs are the target.
            assert names.index(case.like) < names.index(case.name)


def test_the_ablation_pulls_kernels_as_the_paper_does(tmp_path):
    found = {case.name: case for case in cases.cases("ablation", "paper")}
    assert [name for name in found if name.startswith("lasso")] == [
        *("lasso-0.3", "lasso-0.03", "lasso-0.003", "lasso-0.001")
    ]
    weights = tmp_path / "base.keras"
    weights.touch()

    def chosen(name):
        recipe = f"--recipe={cases.RECIPES['paper']['ablation']}"
        flags = [recipe, f"--init_weights={weights}", *found[name].flags]
        return settings.parse(flags)[0]

    lasso, rep, res = chosen("lasso-0.03"), chosen("rep-0.03"), chosen("res-0.03")
    assert (lasso.compactor, lasso.reset, lasso.remove) == ("filters", False, "minimal")
    assert (lasso.lasso_strength, lasso.compactor_momentum) == (0.03, 0.9)
    assert (rep.compactor, rep.reset, rep.remove) == ("matrix", False, "smallest")
    assert (res.compactor, res.reset) == ("filters", True)
    # As far in a step: rate * strength / (1 - momentum).
    pulls = [s.lasso_strength / (1 - s.compactor_momentum) for s in (lasso, rep)]
    assert pulls[0] == pytest.approx(pulls[1])


def test_matched_methods_take_over_flops_and_twins_are_not_run_again(
    monkeypatch, tmp_path
):
    """The Lasso of all strengths removes 40 %: one run of each other method does."""
    trained = {}

    def train(self, title, flags):
        found, _ = settings.parse(flags)
        trained[title.partition(",")[0]] = found

    def read(case, seed, folder):
        report = {"before": {"flops": 10}, "after": {"flops": 6}}
        return Result(case, seed, folder, report)

    monkeypatch.setattr(study.Study, "_train", train)
    monkeypatch.setattr(Result, "read", read)
    parsed = study.Study.parse(["--study=ablation", f"--output={tmp_path}"])
    results = parsed._run(0)
    assert [result.case.name for result in results] == [c.name for c in parsed.cases]
    assert trained["res-0.3"].flops_target == pytest.approx(0.4)
    assert "res-0.03" not in trained and "resrep-0.03" not in trained
    assert "rep-0.03" in trained  # Its strength is another one.


def test_what_the_lasso_cannot_remove_is_left_out(monkeypatch, tmp_path):
    def read(case, seed, folder):
        return Result(
            case, seed, folder, {k: {"flops": 10} for k in ("before", "after")}
        )

    monkeypatch.setattr(study.Study, "_train", lambda *arguments: None)
    monkeypatch.setattr(Result, "read", read)
    parsed = study.Study.parse(["--study=ablation", f"--output={tmp_path}"])
    assert {result.case.group for result in parsed._run(0)} == {"Lasso on kernels"}


def test_means_and_deviations():
    case = cases.Case("a", "A")
    results = [
        Result(
            case,
            seed,
            None,
            {
                "before": {"flops": 100, "params": 10, "accuracy": 0.9},
                "after": {"flops": 40, "params": 4, "accuracy": accuracy},
            },
        )
        for seed, accuracy in enumerate((0.87, 0.89))
    ]
    table = as_markdown([Summary(case, results)])
    assert table.splitlines()[-1] == "| A | 60.00 | 60.0 | 88.00 ± 1.41 | −2.00 |"
    assert Summary(case, results[:1]).accuracy() == "87.00"


# === Mistakes ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "`--study` must be given: variants, ablation, trajectory, criteria"),
        (["--study=all"], "--study=all"),
        (["--study=criteria", "--only=l3"], "`--only` must name methods of this study"),
        (["--study=criteria", "--seeds=0,0"], "`--seeds` must be different numbers"),
        (["--study=criteria", "--seeds=x"], "Received: --seeds=x"),
        (["--study=criteria", "--epoch=3"], "Unknown command line flag 'epoch'"),
        (["--study=criteria", "--preset=cifar10"], "`--init_weights` must be given"),
        (["--study=criteria", "--strategy=multiworker"], "a process of its own"),
        (["--study=criteria", "l2"], "Every argument must be a flag"),
    ],
)
def test_mistakes_are_found_before_training(arguments, message, tmp_path):
    with pytest.raises(CommandError) as error:
        study.run([*arguments, f"--output={tmp_path / 'out'}"])
    assert message in str(error.value)
    assert "Received: " in str(error.value)
    assert not (tmp_path / "out").exists()


def test_given_weights_win_over_an_earlier_base(tmp_path):
    base = tmp_path / "runs" / "base-0" / "base.keras"
    base.parent.mkdir(parents=True)
    base.touch()
    arguments = ["--study=criteria", f"--output={tmp_path}"]
    given = tmp_path / "given.keras"
    given.touch()

    def weights(*more):
        parsed = study.Study.parse([*arguments, *more])
        flags = parsed._case_flags(parsed.cases[0], 0)
        return settings.parse(flags)[0].init_weights

    assert weights() == str(base)
    assert weights(f"--init_weights={given}") == str(given)


def test_a_chosen_method_brings_what_it_refers_to():
    chosen = study.Study.parse(["--study=ablation", "--only=resrep-0.03"]).cases
    assert [case.name for case in chosen] == ["lasso-0.03", "resrep-0.03"]
