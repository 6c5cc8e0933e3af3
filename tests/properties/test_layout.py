"""The same data laid out otherwise give the same update.

What may be moved is the unit of data: an episode, where after its end the actor remembers what it
does at a start; else the whole lane, because there one episode follows from another.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from entries import quick_for
from toys import KEY, ChangingSampler, fingerprint, point_suite, small_agent, trained

from adaptax.core.experience import Step
from adaptax.core.snapshot import flatten


def forgets_at_the_end(actor, rollout) -> bool:
    """Whether the actor acts after an episode as it does when it begins."""
    lanes = rollout.valid.shape[:2]
    start, obs = actor.begin(*lanes, KEY), rollout.obs[:, :, 0]
    action, carry, _ = actor.act(start, obs, KEY)
    no, yes = np.zeros(lanes, bool), np.ones(lanes, bool)
    step = Step(obs, action, rollout.reward[:, :, 0], obs, no, yes, yes)
    after = actor.observe(carry, step, KEY)
    return fingerprint(actor.act(after, obs, KEY)) == fingerprint(actor.act(start, obs, KEY))


def relaid(rollout, actor, horizon: int):
    """The same units in another shape; the same rollout if there is no other shape.

    Episodes of several to a lane get a lane each, [M, N * E, H]; single ones are joined in pairs,
    [M, N / 2, 2 * H]. Lanes of several members go to one, [1, M * N, T]; those of one to a member
    each, [N, 1, T].
    """
    members, lanes, steps = rollout.valid.shape
    if not forgets_at_the_end(actor, rollout):
        shape = (1, members * lanes) if members > 1 else (lanes, 1)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[2:]), rollout)
    num_episodes, rest = divmod(lanes * steps, horizon)
    if rest or steps % horizon:
        return rollout
    per_lane = 1 if steps > horizon else 2 - num_episodes % 2
    shape = (members, num_episodes // per_lane, per_lane * horizon)
    steps = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[3:]), rollout.steps)
    start, nothing = actor.begin(*shape[:2], KEY), np.zeros(shape[:2], np.float32)
    return replace(steps, initial_carry=start, final_carry=start, initial_return=nothing)


@quick_for("nop", "cem", "ppo", "sac")
def test_the_same_data_in_another_layout_give_the_same_update(entry):
    suite, shapes = point_suite(entry), []

    def change(rollout, actor):
        assert np.all(rollout.valid)
        other = relaid(rollout, actor, suite.spec.horizon)
        shapes.append((rollout.valid.shape, other.valid.shape))
        return other

    algorithm = small_agent(entry, suite)
    if entry.name == "a2c":  # RMSProp's first step, ten step sizes long, is so by its rounding too
        algorithm = algorithm.with_config(replace(algorithm.config, lr=1e-3))
    other, other_metrics = trained(algorithm, ChangingSampler(suite, change), 1)
    if all(before == after for before, after in shapes):
        pytest.skip(f"rollouts of {shapes[0][0]} have no other layout")
    state, metrics = trained(algorithm, ChangingSampler(suite, lambda rollout, actor: rollout), 1)
    leaves, others = flatten(state), flatten(other)
    # Conjugate gradients magnify the rounding of sums in another order.
    atol = 1e-5 if entry.name == "trpo" else 1e-6
    for name in leaves:
        np.testing.assert_allclose(leaves[name], others[name], rtol=1e-6, atol=atol, err_msg=name)
    # Returns by episode of a lane are of the layout, by definition; losses are not.
    for name in metrics:
        if not name.startswith("return"):
            np.testing.assert_allclose(
                metrics[name], other_metrics[name], rtol=1e-5, atol=1e-5, err_msg=name
            )
