from __future__ import annotations

import dataclasses
import json

import pytest
import recipes as benchmark

import adaptax
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import from_dict, to_dict
from adaptax.core.errors import ConfigError
from adaptax.experiment import cli
from adaptax.experiment.recipe import (
    CLASS_DEFAULTS,
    About,
    Measured,
    Recipe,
    all_recipes,
    find_recipe,
    read_recipe,
    to_toml,
)

OWN = """
[recipe]
algorithm = "reinforce"
suites = ["cartpole"]

[algorithm]
lr = 0.02
hidden_sizes = [5]
num_episodes = 2

[trainer]
num_iterations = 2
evaluation.num_lanes = 2
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def options(*args, algorithm="reinforce", suite="cartpole"):
    return cli.train_options(algorithm, suite, args)[1]


@pytest.mark.parametrize("name", all_recipes())
def test_every_recipe_has_settings_that_exist(name):
    recipe = all_recipes()[name]
    for suite in recipe.about.suites:
        recipe.check(suite.replace("*", "reach-v3"))


@pytest.mark.parametrize("name", all_recipes())
def test_figures_are_those_of_runs_with_the_settings_and_defaults_of_today(name):
    recipe = all_recipes()[name]
    measured = (benchmark.measured(recipe, suite) for suite in recipe.about.suites)
    assert recipe.measured == tuple(one for one in measured if one is not None)


RECORDED = Recipe("own", About("reinforce", ("cartpole",)), {"lr": 0.02}, {}, {"num_iterations": 2})


def test_the_first_line_says_what_a_recipe_for_other_suites_was_made_for():
    assert RECORDED.in_words("cartpole") == "recipe own; without it: --recipe none"
    assert RECORDED.in_words("pendulum").startswith("recipe own (made for cartpole); without")


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"algorithm": {"lr": 0.02, "discount": 0.99}}, True),  # which is the default
        ({"algorithm": {"lr": 0.02, "discount": 0.9}}, False),
        ({"algorithm": {}}, False),
        ({"algorithm": {"lr": 0.02, "baseline": "linear"}}, False),  # not on record
        ({"algorithm": {"lr": 0.02, "memory": {"size": 7}}}, False),  # nor this
        ({"suite": {"horizon": 100}}, False),
        ({"trainer": {"num_iterations": 3}}, False),
    ],
)
def test_figures_of_a_run_count_while_it_would_be_trained_alike(changes, counts, tmp_path):
    config = to_dict(find_algorithm("reinforce").load()[1](lr=0.02))
    assert config["discount"] == 0.99 and config.pop("baseline") == "none"
    assert config["memory"].pop("size") != 7
    path = tmp_path / "figures.json"
    figures = {"settings": benchmark.settings_of(RECORDED), "algorithm": config}
    path.write_text(json.dumps(figures))
    found = benchmark.run_of(dataclasses.replace(RECORDED, **changes), path)
    assert found == (json.loads(path.read_text()) if counts else None)


def test_every_pair_has_one_recipe_by_default():
    pairs = [
        (recipe.about.algorithm, suite)
        for recipe in all_recipes().values()
        if recipe.about.by_default
        for suite in recipe.about.suites
    ]
    assert len(set(pairs)) == len(pairs)


def test_a_recipe_comes_before_defaults_and_flags_before_a_recipe(own):
    plain, found = options(suite="pendulum"), options("--recipe", str(own))
    flags = options(f"--recipe={own}", "--algorithm.lr", "0.5", "--algorithm.hidden-sizes", "7")
    assert (plain.algorithm.lr, plain.trainer.recipe) == (0.003, None)
    assert (found.algorithm.lr, found.algorithm.hidden_sizes) == (0.02, (5,))
    assert (found.trainer.num_iterations, found.trainer.evaluation.num_lanes) == (2, 2)
    assert (flags.algorithm.lr, flags.algorithm.hidden_sizes) == (0.5, (7,))
    assert flags.algorithm.num_episodes == 2 and flags.trainer.recipe == str(own)


@pytest.mark.parametrize("flag", ["--num-steps", "--trainer.num_steps", "--num_steps"])
def test_who_sets_a_limit_has_none_of_the_recipes(own, flag):
    trainer = options("--recipe", str(own), flag, "77").trainer
    assert (trainer.num_iterations, trainer.num_steps) == (None, 77)


FOUND = Measured("cartpole", 5, 6000, 0.0, 0.0, 0.0, 1.0, "a machine")
OF_EPISODES = Recipe(
    *("mine", About("reinforce", ("*",)), {"lr_schedule": "linear"}),
    trainer={"num_iterations": 30},
    measured=(FOUND,),
)
OF_STEPS = Recipe(
    *("mine", About("ppo2", ("*",)), {"lr_schedule": "linear", "num_steps": 80}),
    trainer={"num_steps": 800},
)
WITHIN = Recipe(
    *("mine", About("ppo", ("*",)), {"critic": {"lr_schedule": "linear", "lr": 0.5}}),
    trainer={"num_iterations": 30},
)


@pytest.mark.parametrize(
    ("recipe", "suite", "limits", "expected"),
    [
        (OF_EPISODES, "cartpole", {}, None),
        (OF_EPISODES, "cartpole", {"num_iterations": 30}, None),
        (OF_EPISODES, "cartpole", {"num_iterations": 7, "num_steps": 9}, None),
        (OF_EPISODES, "cartpole", {"num_steps": 2000}, 10),
        (OF_EPISODES, "cartpole", {"num_steps": 2001}, 11),
        (OF_EPISODES, "cartpole", {"num_steps": 60_000}, 300),
        (OF_EPISODES, "pendulum", {"num_steps": 60_000}, 30),
        (OF_EPISODES, "cartpole", {"max_seconds": 9.0}, 30),
        (OF_STEPS, "cartpole", {"num_steps": 900}, None),
        (OF_STEPS, "cartpole", {"max_seconds": 9.0}, 10),
        (CLASS_DEFAULTS, "cartpole", {"max_seconds": 9.0}, None),
    ],
)
def test_a_run_is_expected_to_have_iterations_in_proportion_to_the_recipes(
    recipe, suite, limits, expected
):
    named = recipe.about.algorithm or "reinforce"
    config = from_dict(find_algorithm(named).load()[1], recipe.algorithm)
    assert recipe.expected_iterations(config, suite, limits) == expected
    if expected is None:
        assert recipe.timed(config, suite, limits) is config
    else:
        passes = expected * config.passes_per_iteration
        assert recipe.timed(config, suite, limits).lr_schedule_steps == passes


def test_only_schedules_that_fall_have_a_length_and_those_within_settings_too():
    limits = {"max_seconds": 9.0}
    config = from_dict(find_algorithm("ppo").load()[1], WITHIN.algorithm)
    timed = WITHIN.timed(config, "cartpole", limits)
    assert (timed.lr_schedule_steps, timed.critic.lr_schedule_steps) == (None, 300)
    given = from_dict(type(config), {"lr_schedule": "linear", "lr_schedule_steps": 9})
    assert WITHIN.timed(given, "cartpole", limits) is given


@pytest.mark.parametrize(
    ("limits", "length"),
    [
        ({}, 600),
        ({"num_steps": 800}, 600),
        ({"num_steps": 1600}, 1200),
        ({"num_iterations": 7}, None),
        ({"max_seconds": 9.0}, 600),
    ],
)
def test_a_length_that_a_recipe_gives_is_that_of_its_own_run(limits, length):
    given = {"lr_schedule_steps": 600, "critic": {"lr": 0.5, "lr_schedule_steps": 600}}
    recipe = Recipe("mine", About("ppo2", ("*",)), given, trainer={"num_steps": 800})
    found = recipe.for_run("cartpole", limits).algorithm
    assert found.get("lr_schedule_steps") == found["critic"].get("lr_schedule_steps") == length
    assert found["critic"]["lr"] == 0.5
    of_no_run = dataclasses.replace(recipe, trainer={})
    assert of_no_run.for_run("cartpole", limits) is of_no_run


PEARL = {"algorithm": "pearl", "suite": "half-cheetah-vel"}
RL2 = {"algorithm": "rl2-ppo", "suite": "half-cheetah-vel"}


@pytest.mark.parametrize(
    ("pair", "flags", "length"),
    [
        (RL2, ["--max-seconds", "60"], 2400),
        (RL2, ["--max-seconds", "60", "--algorithm.num-epochs", "1"], 300),
        (RL2, ["--max-seconds", "60", "--algorithm.lr-schedule", "cosine"], 2400),
        (RL2, ["--max-seconds", "60", "--algorithm.lr-schedule-steps", "9"], 9),
        (RL2, ["--max-seconds", "60", "--algorithm.lr-schedule", "constant"], None),
        (RL2, ["--num-steps", "7_680_000"], 4800),
        (RL2, ["--num-steps", "None"], None),
        (PEARL, [], 92_000),
        (PEARL, ["--num-steps", "540000"], 184_000),
        (PEARL, ["--num-iterations", "200"], None),
        (PEARL, ["--num-iterations", "200", "--algorithm.lr-schedule-steps", "92000"], 92_000),
    ],
)
def test_the_command_line_has_a_schedule_fall_over_the_run(pair, flags, length):
    assert options(*flags, **pair).algorithm.lr_schedule_steps == length


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"num_steps": 2 * 96_000}, 400),
        ({"num_iterations": 2}, 2),
        ({"num_steps": 2 * 96_000, "algorithm": {"lr_schedule_steps": 9}}, 9),
    ],
)
def test_training_from_python_has_a_schedule_fall_over_the_run(
    settings, length, tmp_path, monkeypatch
):
    monkeypatch.setattr(adaptax.Trainer, "run", lambda self: None)
    measured = dataclasses.replace(FOUND, suite="point-goal", num_steps=96_000)
    known = {"own": dataclasses.replace(OF_EPISODES, trainer={"num_iterations": 200})}
    known["own"] = dataclasses.replace(known["own"], name="own", measured=(measured,))
    monkeypatch.setattr("adaptax.experiment.recipe.all_recipes", lambda: known)
    trainer = adaptax.train("reinforce", "point-goal", run_dir=tmp_path / "run", **settings)
    trainer.close()
    assert trainer.algorithm.config.lr_schedule_steps == length


def test_a_recipe_that_is_asked_for_as_none_is_on_record():
    found = options("--recipe", "None", algorithm="a2c").trainer
    assert found.recipe == "a2c-classic"
    assert options("--recipe", "none", algorithm="a2c").trainer.recipe == "none"


def test_a_pairs_own_recipe_is_taken_unless_told_otherwise(monkeypatch):
    mine = Recipe("mine", About("reinforce", ("cart*",)), {"lr": 0.1})
    nearer = Recipe("nearer", About("reinforce", ("cartpole",)), {"lr": 0.2})
    asked = Recipe("asked", About("reinforce", ("cartpole",), by_default=False), {"lr": 0.3})
    found = {recipe.name: recipe for recipe in (asked, mine, nearer)}
    monkeypatch.setattr("adaptax.experiment.recipe.all_recipes", lambda: found)
    assert options().algorithm.lr == 0.2
    assert options("--recipe", "asked").algorithm.lr == 0.3
    assert options("--recipe", "none").algorithm.lr == 0.003
    assert find_recipe(None, "ppo", "cartpole") is CLASS_DEFAULTS


def test_from_python_settings_come_before_a_recipe(own, tmp_path, capsys):
    trainer = adaptax.train(
        *("reinforce", "cartpole"),
        algorithm={"lr": 0.5},
        recipe=own,
        num_iterations=1,
        run_dir=tmp_path / "run",
        evaluation_interval=None,
        quiet=True,
    )
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    trainer.close()
    assert (config["algorithm"]["lr"], config["algorithm"]["hidden_sizes"]) == (0.5, [5])
    assert (config["trainer"]["recipe"], config["trainer"]["num_iterations"]) == (str(own), 1)


def test_a_recipe_goes_with_names(own, tmp_path):
    suite = adaptax.make_suite("cartpole")
    with pytest.raises(ConfigError, match="goes with the names"):
        adaptax.train("reinforce", suite, recipe=str(own), run_dir=tmp_path / "run")


@pytest.mark.parametrize(
    "change, message",
    [
        (("lr", "lrr"), "unknown setting 'algorithm.lrr'; did you mean 'algorithm.lr'"),
        (("0.02", '"x"'), "algorithm.lr"),
        (("reinforce", "ppo"), "is for ppo, not for reinforce"),
        (("[recipe]", "[recipee]"), "did you mean 'recipe'"),
        (("[recipe]", "[algorithm]"), "cannot read the recipe"),
        (("suites", "suite"), "unknown setting"),
    ],
)
def test_a_faulty_recipe_is_one_line(own, change, message, capsys):
    own.write_text(own.read_text().replace(*change, 1))
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "reinforce", "cartpole", "--recipe", str(own)])
    lines = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and len(lines) == 1 and message in lines[0]


def test_an_unknown_recipe_is_one_line(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "a2c", "cartpole", "--recipe", "a2c-classi"])
    assert "unknown recipe 'a2c-classi'; did you mean 'a2c-classic'" in capsys.readouterr().err


def test_list_tells_recipes(capsys):
    cli.main(["list", "--recipes"])
    assert "a2c-classic" in capsys.readouterr().out
    cli.main(["list", "--json"])
    recipes = json.loads(capsys.readouterr().out)["recipes"]
    assert {"name", "algorithm", "suites", "settings", "measured"} <= recipes[0].keys()


def test_toml_of_a_recipe_is_read_back(tmp_path):
    tables = {
        "recipe": {"algorithm": "ppo", "suites": ["cartpole"], "source": 'a "sweep" \U0001f600'},
        "algorithm": {"lr": 1e-5, "critic": {"lr": None}, "max_grad_norm": None, "x": [1, None]},
        "trainer": {"num_steps": 5, "patience": None},
    }
    path = tmp_path / "own.toml"
    path.write_text(to_toml(tables))
    recipe = read_recipe(path, "own")
    assert recipe.about == About("ppo", ("cartpole",), 'a "sweep" \U0001f600')
    assert recipe.algorithm == tables["algorithm"] and recipe.trainer == tables["trainer"]
    assert dataclasses.replace(recipe, name="x").to_dict()["settings"]["suite"] == {}
