"""What a user types compiles and starts, with the compiler's settings that a user has.

The other tests' programs are compiled in a hurry, without most of XLA's and LLVM's passes; what
those make of a program they do not see. Each command is a process of its own: a compiler that ends
it, or takes for ever, is a failure of one test.
"""

import os
import subprocess
import sys

import pytest

LINES = (
    "sac half-cheetah --num-steps 1000",
    "td3 hopper --num-steps 1000",
    "dqn catch --num-steps 1000",
    "ppo half-cheetah --num-iterations 1",
    "ppo2 catch --num-iterations 1",
    "trpo walker --num-iterations 1",
    "cma-es pendulum --num-iterations 1",
    "svpg cartpole --num-iterations 1",
    "rl2-ppo hopper-params --num-iterations 1",
    "rl2-ppo gridworld --num-iterations 1",
    "rl2-sac point-goal --num-iterations 1",
    "varibad half-cheetah-vel --num-iterations 1",
    "promp half-cheetah-dir --num-iterations 1",
    "dice-maml point-goal --num-iterations 1",
    "pearl point-goal --algorithm.num-updates 20 --num-iterations 1",
    "ppo cartpole --seeds 0:2 --num-iterations 1",
)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_the_first_iteration_comes(line, tmp_path):
    words = [*line.split(), "--recipe", "none", "--evaluation-interval", "1000", "--quiet"]
    command = [sys.executable, "-m", "adaptax", "train", *words, "--run-dir", str(tmp_path / "run")]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run(command, env=environment, timeout=1800, check=True)
    assert list(tmp_path.glob("run/**/progress.jsonl"))
