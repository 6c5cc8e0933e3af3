"""Entry points of installed packages: found by name, and nobody's fault breaks a command."""

from __future__ import annotations

import json
import sys
import warnings

import pytest

from adaptax.algorithms.registry import ALGORITHMS, all_algorithms, find_algorithm
from adaptax.core.errors import ConfigError
from adaptax.envs.registry import SUITES, all_suites, find_suite
from adaptax.experiment import cli
from adaptax.experiment.build import make_suite
from adaptax.experiment.callbacks import Callbacks, installed_callbacks
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.networks.memory import MemoryConfig, plugin_memories

SOUND = """
from dataclasses import dataclass
import adaptax
from adaptax.algorithms.search.nop import NOP, NOPConfig
from adaptax.envs.suites.point_goal import PointGoalConfig, point_goal
from adaptax.networks.memory import Memory
from dataclasses import replace

@dataclass(frozen=True)
class StillConfig(NOPConfig):
    pass

class Still(NOP):
    \"\"\"Does nothing, slowly.

    More of it.
    \"\"\"
    name = "still"

class Ppo(Still):
    name = "ppo"

PpoConfig = StillConfig

class Misnamed(Still):
    name = "other"

MisnamedConfig = StillConfig

class Bare(Still):
    name = "bare"

class Needy(Still):
    name = "needy"

@dataclass(frozen=True)
class NeedyConfig:
    number: int

def shore(config: PointGoalConfig) -> adaptax.Suite:
    \"\"\"Points on a shore\"\"\"
    return replace(point_goal(config), name="shore")

def misnamed(config: PointGoalConfig):
    return point_goal(config)

def untyped(config):
    return point_goal(config)

class Slate(Memory):
    \"\"\"Wiped at once\"\"\"

class Loud(adaptax.Callback):
    \"\"\"Says so\"\"\"
    def on_row(self, run, row):
        return {"loud": 1.0}

class Picky(adaptax.Callback):
    def __init__(self, what):
        pass

nothing = None
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with entry points: `install(package, {group: {name: value}})`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugged.py").write_text(SOUND)
    (tmp_path / "broken_plugin.py").write_text("import no_such_module")
    (tmp_path / "leaving_plugin.py").write_text("import sys; sys.exit(3)")

    def one(package, groups):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [
            f"[adaptax.{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items())
            for group, points in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))

    yield one
    for name in ("plugged", "broken_plugin", "leaving_plugin"):
        sys.modules.pop(name, None)


def names(entries):
    return [entry.name for entry in entries]


def test_plugins_are_found_and_listed(install, capsys):
    install(
        "sound", {"algorithms": {"still": "plugged:Still"}, "suites": {"shore": "plugged:shore"}}
    )
    algorithm, config = find_algorithm("still").load()
    assert (algorithm.__name__, config.__name__) == ("Still", "StillConfig")
    assert make_suite("shore", horizon=7).spec.horizon == 7
    assert make_suite("shore").config == find_suite("shore").load()[0]()
    cli.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert listed["algorithms"][-1] == {"name": "still", "summary": "Does nothing, slowly"}
    assert listed["suites"][-1] == {"name": "shore", "summary": "Points on a shore"}
    assert len(listed["algorithms"]) == len(ALGORITHMS) + 1


def test_a_name_of_theirs_is_offered_where_one_is_mistyped(install):
    install(
        "sound", {"algorithms": {"still": "plugged:Still"}, "suites": {"shore": "plugged:shore"}}
    )
    with pytest.raises(ConfigError, match="did you mean 'still'"):
        find_algorithm("stil")
    with pytest.raises(ConfigError, match="did you mean 'shore'"):
        find_suite("shoer")


BROKEN = {
    "a": ("broken_plugin:A", "ModuleNotFoundError: No module named 'no_such_module'"),
    "b": ("plugged:Missing", "cannot be loaded: AttributeError"),
    "c": ("leaving_plugin:C", "cannot be loaded: SystemExit: 3"),
    "d": ("plugged", "is not"),
    "e": ("plugged:nothing", "is not"),
    "bare": ("plugged:Bare", "no usable config BareConfig"),
    "needy": ("plugged:Needy", "no usable config NeedyConfig beside it: TypeError"),
    "misnamed": ("plugged:Misnamed", "calls itself 'other'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_algorithm_is_a_line(install, name, capsys):
    value, message = BROKEN[name]
    install("broken", {"algorithms": {name: value, "still": "plugged:Still"}})
    with pytest.raises(ConfigError) as refused:
        find_algorithm(name)
    assert message in str(refused.value)
    assert f"the entry point {name!r} ({value}) of broken" in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.warns(UserWarning) as caught:
        found = names(all_algorithms())
    assert [str(w.message) for w in caught] == [str(refused.value)]
    assert found == [*ALGORITHMS, "still"]
    assert names(all_suites()) == list(SUITES)


@pytest.mark.parametrize("value", ["broken_plugin:A", "plugged:nothing", "plugged:untyped"])
def test_a_broken_suite_is_a_line(install, value):
    install("broken", {"suites": {"lake": value}})
    with pytest.raises(ConfigError, match="the entry point 'lake'") as refused:
        find_suite("lake")
    with pytest.warns(UserWarning) as caught:
        assert names(all_suites()) == list(SUITES)
    assert [str(w.message) for w in caught] == [str(refused.value)]


def test_a_suite_by_another_name_is_refused_when_it_is_made(install):
    install("sound", {"suites": {"lake": "plugged:misnamed"}})
    with pytest.raises(
        ConfigError, match="the suite of the entry point 'lake' is called 'point-go"
    ):
        make_suite("lake")


def test_names_of_ours_stay_ours(install):
    install("greedy", {"algorithms": {"ppo": "plugged:Ppo"}, "suites": {"gym:X": "plugged:shore"}})
    with pytest.warns(
        UserWarning, match=r"'ppo' \(plugged:Ppo\) of greedy is refused: adaptax has"
    ):
        assert find_algorithm("ppo") is ALGORITHMS["ppo"]
    with pytest.warns(UserWarning, match="of greedy is refused: adaptax has that name"):
        assert names(all_algorithms()) == list(ALGORITHMS)
    with pytest.warns(UserWarning, match="'gym:X' .* is refused: adaptax has that name"):
        assert names(all_suites()) == list(SUITES)
    assert "plugged" not in sys.modules


def test_of_two_packages_with_one_name_the_first_has_it(install):
    install("alpha", {"algorithms": {"still": "plugged:Still"}})
    install("beta", {"algorithms": {"still": "broken_plugin:A"}})
    with pytest.warns(
        UserWarning, match="'still' .* is refused: (alpha|beta) has that name"
    ) as caught:
        all_algorithms()
    assert len(caught) >= 1


def test_a_plugin_that_nobody_asks_for_is_not_imported(install):
    install("broken", {"algorithms": {"a": "broken_plugin:A"}, "suites": {"b": "broken_plugin:B"}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_algorithm("ppo")
        find_suite("point-goal")
        find_suite("gym:CartPole-v1")
    assert "broken_plugin" not in sys.modules


def test_a_command_warns_of_a_broken_plugin_in_one_line(install, capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    install("broken", {"algorithms": {"a": "broken_plugin:A"}})
    cli.main(["list"])
    out, err = capsys.readouterr()
    assert "ppo" in out
    assert err == (
        "adaptax: warning: the entry point 'a' (broken_plugin:A) of broken cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_memories_and_callbacks_of_packages_are_names(install, capsys):
    install(
        "sound", {"memories": {"slate": "plugged:Slate"}, "callbacks": {"loud": "plugged:Loud"}}
    )
    slate = MemoryConfig("slate", 5).make()
    assert (type(slate).__name__, slate.size) == ("Slate", 5)
    (loud,) = installed_callbacks(["loud", "loud"])
    assert type(loud).__name__ == "Loud"
    named = Callbacks(()).with_shipped(TrainerConfig("run", callbacks=("loud",)))
    assert list(named.save()) == ["Loud"]
    cli.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert listed["memories"][-1] == {"name": "slate", "summary": "Wiped at once"}
    assert listed["callbacks"] == [{"name": "loud", "summary": "Says so"}]
    with pytest.raises(ConfigError, match="unknown memory 'slat'; did you mean 'slate'"):
        MemoryConfig("slat")
    with pytest.raises(ConfigError, match="unknown callback 'lout'; did you mean 'loud'"):
        installed_callbacks(["lout"])


def test_a_broken_memory_or_callback_is_a_line(install):
    kinds = {"a": "broken_plugin:A", "b": "plugged:nothing", "c": "plugged:Still"}
    install("broken", {"memories": kinds, "callbacks": {**kinds, "d": "plugged:Picky"}})
    for name in kinds:
        with pytest.raises(ConfigError, match=f"the entry point '{name}' .* of broken"):
            MemoryConfig(name)
    for name in (*kinds, "d"):
        with pytest.raises(ConfigError, match=f"the entry point '{name}' .* of broken") as refused:
            installed_callbacks([name])
        assert "\n" not in str(refused.value)
    with pytest.warns(UserWarning, match="of broken"):
        assert plugin_memories() == {}


@pytest.mark.parametrize(
    "flag", ["--callbacks=x", "--trainer.callbacks=x", "--algorithm.memory=x", "--callbacks=picky"]
)
def test_a_refused_name_prints_nothing_else(install, flag, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    install("broken", {"callbacks": {"picky": "plugged:Picky"}})
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "ppo", "cartpole", flag])  # which has a recipe, and says so
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "runs").exists()
