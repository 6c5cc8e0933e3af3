"""Networks of one's own: on record by name, asked for again, never imported by a config."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from toys import fingerprint

import adaptax
from adaptax.algorithms import registry
from adaptax.core.errors import AdaptaxError
from adaptax.experiment import cli
from adaptax.experiment.logger import read_rows
from adaptax.experiment.own_parts import WHERE_HANDED_IN
from adaptax.experiment.provenance import own_networks
from adaptax.experiment.recipe import CLASS_DEFAULTS, all_recipes
from adaptax.networks.heads import ActionHead
from adaptax.networks.mlp import MLP

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugin"
QUICK = {"quiet": True, "evaluation_interval": None, "snapshot_interval": 2}


class Wide(nn.Module):
    """A policy of another width."""

    space: object
    size: int = 24

    @nn.compact
    def __call__(self, obs):
        return ActionHead(self.space)(nn.relu(nn.Dense(self.size)(obs)))


class Deep(nn.Module):
    """Another class with the parameters of `Wide`."""

    space: object

    @nn.compact
    def __call__(self, obs):
        return Wide(self.space)(obs)


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    """The module of the example, whose algorithm is registered here."""
    monkeypatch.syspath_prepend(EXAMPLES)
    entry = registry.AlgorithmEntry("my-reinforce", "", "own_algorithm:MyReinforce")
    monkeypatch.setitem(registry.ALGORITHMS, entry.name, entry)
    import own_algorithm

    yield own_algorithm
    del sys.modules["own_algorithm"]


def trained(run_dir, num_iterations, networks=None):
    suite = {"horizon": 8}
    return adaptax.train(
        *("my-reinforce", "point-goal"),
        suite=suite,
        networks=networks,
        run_dir=run_dir,
        num_iterations=num_iterations,
        **QUICK,
    )


def space():
    return adaptax.make_suite("point-goal").spec.action


def recorded(run_dir):
    return json.loads((run_dir / "config.json").read_text())["algorithm"]["networks"]


def test_the_config_names_the_class_of_ones_own_networks_only(tmp_path, mine):
    trained(tmp_path / "own", 1, Wide(space()))
    trained(tmp_path / "default", 1)
    assert recorded(tmp_path / "own") == f"{__name__}:Wide"
    assert recorded(tmp_path / "default") is None
    trained(tmp_path / "equal", 1, mine.Policy(space()))  # those of the config, handed in
    assert recorded(tmp_path / "equal") is None


def test_with_the_networks_given_again_resume_is_exact(tmp_path):
    whole = trained(tmp_path / "whole", 4, Wide(space()))
    assert whole.state.params["params"]["Dense_0"]["kernel"].shape == (2, 24)
    trained(tmp_path / "parts", 2, Wide(space()))
    parts = adaptax.load_run(tmp_path / "parts", networks=Wide(space()), num_iterations=4)
    parts.resume()
    assert fingerprint(parts.state) == fingerprint(whole.state)
    rows = [read_rows(t.run_dir / "progress.jsonl")[-1] for t in (parts, whole)]
    assert rows[0]["train/policy_loss"] == rows[1]["train/policy_loss"]


def test_an_agent_acts_with_the_networks_that_it_was_trained_with(tmp_path):
    trainer = trained(tmp_path / "run", 2, Wide(space()))
    agent = adaptax.load(tmp_path / "run", networks=Wide(space()), deterministic=True)
    obs = np.array([0.3, -0.2], np.float32)
    action, _ = agent.act(agent.begin(jax.random.key(0)), obs)
    expected = Wide(space()).apply(trainer.state.params, obs).mode()
    np.testing.assert_allclose(action, expected, rtol=1e-5)
    with pytest.raises(AdaptaxError, match="networks of one's own"):
        adaptax.load(tmp_path / "run")


@pytest.mark.parametrize("command", ["resume", "evaluate", "video"])
def test_commands_say_in_one_line_that_python_goes_on(tmp_path, capsys, command):
    trained(tmp_path / "run", 2, Wide(space()))
    with pytest.raises(SystemExit) as stop:
        cli.main([command, str(tmp_path / "run")])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2
    assert f"trained with networks of one's own, {__name__}:Wide: hand them in again" in line
    assert line.endswith("networks=... of adaptax.load, " + WHERE_HANDED_IN.partition(".")[2])


def test_networks_of_another_class_are_refused(tmp_path, mine):
    trainer = trained(tmp_path / "own", 2, Wide(space()))
    with pytest.raises(AdaptaxError, match=r"trained with \S+:Wide, not with \S+:Deep$"):
        adaptax.load_run(tmp_path / "own", networks=Deep(space()))
    other = mine.MyReinforce(mine.MyReinforceConfig(), trainer.suite.spec, Deep(space()))
    for act in ("resume", "load"):
        with pytest.raises(AdaptaxError, match=r"trained with \S+:Wide, not with \S+:Deep$"):
            getattr(adaptax.Trainer(trainer.config, other, trainer.suite), act)()
    trained(tmp_path / "default", 2)
    with pytest.raises(AdaptaxError, match=r"the networks of its config, not with \S+:Wide$"):
        adaptax.load_run(tmp_path / "default", networks=Wide(space()))


def test_networks_of_another_size_are_refused(tmp_path):
    trained(tmp_path / "run", 2, Wide(space()))
    with pytest.raises(
        AdaptaxError, match=r"snapshot has .*\[24, 2\] at .*, configuration .*\[25, 2\]"
    ):
        adaptax.load_run(tmp_path / "run", networks=Wide(space(), 25)).load()


def test_a_class_of_a_program_is_the_same_when_it_is_imported(tmp_path):
    trained(tmp_path / "run", 2, Wide(space()))
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace(f"{__name__}:Wide", "__main__:Wide"))
    adaptax.load_run(str(tmp_path / "run"), networks=Wide(space())).load()
    path.write_text(path.read_text().replace("__main__:Wide", "__main__:Deep"))
    with pytest.raises(AdaptaxError, match="trained with __main__:Deep, not with"):
        adaptax.load_run(tmp_path / "run", networks=Wide(space()))


def test_a_config_makes_nothing_be_imported(tmp_path):
    (tmp_path / "evil_module.py").write_text("raise SystemError('imported')")
    trained(tmp_path / "run", 2)
    path, evil = tmp_path / "run" / "config.json", "evil_module:Net"
    config = json.loads(path.read_text())
    sys.path.insert(0, str(tmp_path))
    try:
        for room, changes in (
            ("algorithm", {"networks": evil}),
            ("algorithm", {"name": evil}),
            ("suite", {"name": evil}),
            ("suite", {"name": f"gym:{evil}-v0"}),
        ):
            path.write_text(json.dumps({**config, room: {**config[room], **changes}}))
            with pytest.raises(AdaptaxError):
                adaptax.load_run(tmp_path / "run")
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil_module" not in sys.modules


def test_a_network_is_ones_own_where_it_differs_from_that_of_the_config(mine):
    suite = adaptax.make_suite("point-goal")
    make = mine.MyReinforce
    assert own_networks(make(mine.MyReinforceConfig(), suite.spec)) is None
    assert own_networks(make(mine.MyReinforceConfig(), suite.spec, MLP((3,)))) == (
        "adaptax.networks.mlp:MLP"
    )


def test_what_an_algorithm_warns_of_when_it_is_made_comes_once(mine):
    class Loud(mine.MyReinforce):
        def __init__(self, config, spec, networks=None):
            super().__init__(config, spec, networks)
            warnings.warn("loud", stacklevel=2)

    spec = adaptax.make_suite("point-goal").spec
    with pytest.warns(UserWarning, match="loud") as told:
        assert own_networks(Loud(mine.MyReinforceConfig(), spec)) is None
    assert len(told) == 1


class Both(nn.Module):
    """Policy and value, as a module that `adaptax.make_algorithm` takes may have them wrong."""

    space: object
    value_axis: bool = False
    no_value: bool = False

    @nn.compact
    def __call__(self, obs):
        distribution = ActionHead(self.space)(obs)
        value = nn.Dense(1)(obs)
        if self.no_value:
            return distribution
        return distribution, value if self.value_axis else value[..., 0]


@pytest.mark.parametrize("name", ["reinforce", "a2c", "ppo", "rl2-ppo", "rl2-trpo"])
@pytest.mark.parametrize(
    ("networks", "words"),
    [
        ("Both", "networks must be a Flax module, an instance of its class, not 'Both'"),
        (Both, "networks must be a Flax module, an instance of its class, not <class"),
        (Both(space(), no_value=True), r"and a value \[...\]; a trial fails: TypeError: "),
        (
            Both(space(), value_axis=True),
            r"make of inputs .* over actions Continuous\(size=2\) and a value \[2, 1",
        ),
    ],
)
def test_networks_that_are_no_actor_critic_are_refused_by_name(name, networks, words):
    spec = adaptax.make_suite("point-goal").spec
    with pytest.raises(AdaptaxError, match=words):
        adaptax.make_algorithm(name, spec, networks)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("ppo", {"hidden_sizes": (8,), "lr": 0.01}, "hidden_sizes would have no effect"),
        ("a2c", {"memory": {"size": 8}, "init_std": 0.1}, "memory, init_std would have no"),
        ("svpg", {"particle": {"hidden_sizes": (8,)}}, r"particle\.hidden_sizes would have"),
    ],
)
def test_settings_of_networks_beside_ones_own_are_refused(tmp_path, name, settings, words):
    suite = adaptax.make_suite("point-goal")
    algorithm = adaptax.make_algorithm(name, suite.spec, Both(space()), **settings)
    with pytest.raises(AdaptaxError, match=words):
        adaptax.train(algorithm, suite, run_dir=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_recipes_settings_of_networks_are_left_out_beside_ones_own():
    recipe = all_recipes()["pearl-point-goal"]
    left = recipe.without_networks()
    out = recipe.algorithm.keys() - left.algorithm.keys()
    assert {"hidden_sizes"} <= out <= {*adaptax.PEARLConfig.network_settings}
    assert "meta_batch_size" in left.algorithm and left.name == recipe.name
    assert CLASS_DEFAULTS.without_networks() is CLASS_DEFAULTS


@pytest.mark.parametrize("name", sorted({*registry.ALGORITHMS} - {"nop"}))
def test_settings_of_networks_are_settings(name):
    config = registry.find_algorithm(name).load()[1]
    config = type(config().particle) if name == "svpg" else config
    assert {"hidden_sizes"} <= {*config.network_settings} <= {f.name for f in fields(config)}
