"""The flags of the training command: defaults, checks, the flagfile."""

import dataclasses
from pathlib import Path

import pytest

from resrep_tf.cli import flagset
from resrep_tf.cli.errors import CommandError
from resrep_tf.train import settings
from support import runs
from support.runs import one_convolution


def parse(*arguments) -> settings.Settings:
    return settings.parse(arguments)[0]


@pytest.fixture
def saved(tmp_path) -> Path:
    return runs.save(tmp_path / "dense.keras", one_convolution)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--flops_target=1.5"],
            "`--flops_target` is the fraction",
        ),
        (["--flops_target=0"], "`--flops_target`"),
        (["--params_target=1"], "`--params_target` is the fraction"),
        (["--flops_target=half"], "--flops_target=half"),
        (["--flop_target=0.5"], "Did you mean: flops_target?"),
        (["resnet20"], "Every argument must be a flag"),
        (["--arch=resnet57"], "Did you mean 'resnet56'?"),
        (["--arch=keras:ResNet51", "--dataset=digits"], "'keras:ResNet"),
        (["--arch=keras:ResNet50"], "`--dataset` is needed"),
        (["--arch=none.keras", "--dataset=digits"], "an existing .keras file"),
        (["--arch_options=shortcut"], "`--arch_options` must be a list of name=value"),
        (["--init_weights=none.keras"], "`--init_weights` must be an existing file"),
        (["--base_epochs=0"], "`--init_weights` must be given"),
        (["--epochs=0", "--base_epochs=0"], "`--epochs` must be positive"),
        (["--epochs=-1"], "--epochs=-1"),
        (["--batch_size=0"], "--batch_size=0"),
        (["--learning_rate=0"], "`--learning_rate` must be positive"),
        (["--learning_rate=nan"], "`--learning_rate` must be positive"),
        (["--lasso_strength=0"], "`--lasso_strength` must be positive"),
        (["--epsilon=inf"], "`--epsilon` must be positive"),
        (["--remove=minimal"], "`--remove=minimal` needs `--noreset`"),
        (["--noreset", "--method=l2"], "`--noreset` is a variant of ResRep"),
        (["--momentum=1"], "`--momentum` must be at least 0 and less than 1"),
        (["--compactor_momentum=1.5"], "`--compactor_momentum`"),
        (["--warmup_epochs=inf"], "`--warmup_epochs` must be a finite number"),
        (["--weight_decay=nan"], "`--weight_decay` must be a finite number"),
        (["--seed=4294967296"], "[0, 4294967295]"),
        (["--lr_schedule=linear"], "--lr_schedule=linear"),
        (["--lr_schedule=step"], "`--lr_boundaries` must be given"),
        (["--lr_boundaries=3"], "and only for it"),
        (["--lr_schedule=step", "--lr_boundaries=9,3"], "rising numbers of epochs"),
        (["--base_lr_schedule=step", "--base_lr_boundaries=x"], "rising numbers"),
        (["--targets=("], "`--targets` must be paper, internal, all, or a regular"),
        (["--schedule=fast"], "--schedule=fast"),
        (["--compactor=tensor"], "--compactor=tensor"),
        (["--mixed_precision=int8"], "--mixed_precision=int8"),
    ],
)
def test_wrong_flags_are_one_line(arguments, message):
    with pytest.raises(CommandError) as error:
        parse(*arguments)
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    assert "Received: " in text


def test_defaults_follow_the_data_and_the_network(saved):
    chosen = parse()
    assert (chosen.arch, chosen.dataset) == ("resnet20", "digits")
    assert (chosen.schedule, chosen.snap, chosen.targets) == ("auto", True, "paper")
    chosen = parse("--arch=resnet56")
    assert (chosen.dataset, chosen.epochs, chosen.batch_size) == ("cifar10", 480, 64)
    assert chosen.base_lr_boundaries == (120, 180)
    chosen = parse("--arch=resnet50", "--flops_target=0.545")
    assert (chosen.dataset, chosen.epochs) == ("imagenet2012", 180)
    assert chosen.batch_size == 256
    chosen = parse(f"--arch={saved}", "--dataset=digits")
    assert (chosen.base_epochs, chosen.targets) == (0, "internal")
    assert chosen.weight_decay is None
    assert not parse("--schedule=paper").snap
    assert parse("--base_lr_schedule=constant", "--arch=resnet56").base_epochs == 240
    assert parse("--dataset=tfds:cifar10:3.0.2").epochs == 480


def test_the_flagfile_gives_the_same_settings(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(saved.parent)
    arguments = [
        "--arch=dense.keras",
        "--dataset=folder:images",
        "--data_dir=~",
        "--lr_schedule=step",
        "--lr_boundaries=3,7",
        "--nosnap",
        "--output=here",
        "--targets=conv.*",
        "--lasso_strength=0.00123",
    ]
    chosen, text = settings.parse(arguments)
    assert "--output" not in text
    assert f"--dataset=folder:{tmp_path / 'images'}\n" in text
    file = tmp_path / "again.flags"
    file.write_text(text)
    monkeypatch.chdir("/")
    again = parse(f"--flagfile={file}")
    assert again == dataclasses.replace(chosen, output=None)


def test_arch_options_with_commas_survive_the_flagfile(tmp_path):
    arguments = ["--arch=vgg16", "--arch_options=hidden=(16, 8),weight_decay=0.1"]
    chosen, text = settings.parse([*arguments, "--dataset=npz:none.npz"])
    assert chosen.arch_options == {"hidden": (16, 8), "weight_decay": 0.1}
    (tmp_path / "again.flags").write_text(text)
    assert parse(f"--flagfile={tmp_path / 'again.flags'}") == chosen


def test_every_setting_is_a_documented_flag(capsys):
    names = {field.name for field in dataclasses.fields(settings.Settings)}
    flags = settings.flag_set()
    grouped = [name for group in flags.groups.values() for name in group]
    assert names | {"recipe"} == set(grouped)
    assert len(grouped) == len(set(grouped))
    with pytest.raises(SystemExit) as stop:
        flags.parse(["--helpshort"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"--{name} " in printed or f"]{name} " in printed for name in grouped)
    assert all(len(line) <= 88 for line in printed.splitlines())
    assert all(flag.text for flag in flagset.declared(settings.Settings).values())


def test_how_to_forget_is_nothing_to_methods_that_do_not():
    """Their runs are still those of a study whose recipe forgets in another way."""
    names = flagset.marked(settings.Settings, settings.RESREP)
    assert {"compactor", "schedule", "epsilon", "snapshot_epochs"} < set(names)
    changes = {name: object() for name in names}
    for method, count in (("l2", 0), ("resrep", len(changes))):
        chosen, _ = settings.parse([f"--method={method}"])
        changed = dataclasses.replace(chosen, **changes)
        assert len(settings.differences(chosen, changed)) == count
        other = dataclasses.replace(changed, method="fpgm")
        assert settings.differences(chosen, other)[0].startswith(f"--method={method}")


def test_half_of_the_flops_go_unless_something_else_is_asked_for():
    assert parse().flops_target == 0.5
    chosen = parse("--params_target=0.4")
    assert (chosen.flops_target, chosen.params_target) == (None, 0.4)
    both = parse("--params_target=0.4", "--flops_target=0.3")
    assert (both.flops_target, both.params_target) == (0.3, 0.4)
