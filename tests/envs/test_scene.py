"""Arithmetic that is written down, and the native step that computes it."""

from __future__ import annotations

import math

import jax
import mujoco
import numpy as np
import pytest

from adaptax.envs.physics import native
from adaptax.envs.physics.scene import FIELDS, STATE, Guide, Scene, step_scenes
from adaptax.envs.physics.symbols import (
    OPERATIONS,
    Sheet,
    both,
    greater,
    lesser,
    parts,
    program,
    select,
)

needs_native = pytest.mark.skipif(native.problem() is not None, reason=str(native.problem()))

HAND = """
<mujoco>
  <option timestep="0.0025"/>
  <worldbody>
    <body name="guide" mocap="true" pos="0 0 0.5"/>
    <body name="hand" pos="0 0 0.5">
      <freejoint/>
      <geom name="palm" size="0.03" pos="0 0 0.08" mass="1"/>
      <body name="left" pos="0 0.08 0">
        <joint name="left" type="slide" axis="0 1 0" range="-0.1 0.1" damping="10"/>
        <geom name="left_pad" type="box" size="0.02 0.01 0.02" mass="0.1"/>
      </body>
      <body name="right" pos="0 -0.08 0">
        <joint name="right" type="slide" axis="0 1 0" range="-0.1 0.1" damping="10"/>
        <geom name="right_pad" type="box" size="0.02 0.01 0.02" mass="0.1"/>
      </body>
    </body>
    <body pos="0 0 0.02">
      <freejoint/><geom name="box" type="box" size="0.02 0.02 0.02"/>
    </body>
    <site name="goal" pos="0.1 0.2 0.3"/>
  </worldbody>
  <equality><weld body1="guide" body2="hand"/></equality>
  <actuator><motor joint="left" gear="-20"/><motor joint="right" gear="-20"/></actuator>
</mujoco>
"""
GUIDE = Guide(np.array([-0.1, -0.1, 0.45]), np.array([0.1, 0.1, 0.55]), 0.01, 5)


@pytest.fixture(scope="module")
def model():
    return mujoco.MjModel.from_xml_string(HAND)


def interpreted(made, inputs):
    """What a program gives: a second implementation, in plain Python."""
    known = {
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "divide": lambda a, b: a / b,
        "negative": lambda a: -a,
        "absolute": abs,
        "sqrt": math.sqrt,
        "exp": math.exp,
        "log": math.log,
        "sin": math.sin,
        "cos": math.cos,
        "less": lambda a, b: float(a < b),
        "less_equal": lambda a, b: float(a <= b),
        "equal": lambda a, b: float(a == b),
        "both": lambda a, b: float(bool(a) and bool(b)),
        "lesser": min,
        "greater": max,
        "select": lambda a, b, c: b if a else c,
    }
    register = []
    for row in made.code.tolist():
        operation, args = OPERATIONS[row[0]], row[1:]
        if operation == "constant":
            register.append(made.constants[args[0]])
        elif operation in ("action", "memory", "read", "touch"):
            register.append(inputs[operation][args[-1 if operation == "read" else 0]])
        else:
            function = known[operation]
            register.append(function(*(register[a] for a in args[: function_arity(operation)])))
    return [register[i] for i in made.results]


def function_arity(operation):
    one = ("negative", "absolute", "sqrt", "exp", "log", "sin", "cos")
    return 1 if operation in one else 3 if operation == "select" else 2


def tangled(x, y, z):
    """Branches, an early return, arrays, and both kinds of what is never so."""
    pair = np.array([x, y * 2.0], dtype=object)
    if x < 0 and y > 0.2:
        pair[0] = 1.5 * z
    elif not x < 0.5:
        return {"a": pair[0] ** 2 - pair[1], "b": lesser(x, greater(y, z))}
    assert x <= 10
    length = np.linalg.norm(pair - np.array([0.1, z], dtype=object))
    if length > 0.7 or z == y:
        length = length / 2 + np.sin(x) * np.cos(y)
    return {"a": length, "b": select(both(z >= 0.0, z <= 1.0), np.exp(-abs(z)), x)}


def test_a_program_gives_what_the_function_does_on_every_path():
    sheet = Sheet()
    symbols = [sheet.symbol("memory", i) for i in range(3)]
    found = sheet.every_path(lambda: tangled(*symbols))
    made = program(sheet, [found["a"], found["b"], 2.5], [(i,) for i in range(3)])
    rng = np.random.default_rng(0)
    taken = set()
    for _ in range(400):
        numbers = rng.uniform(-1.0, 1.0, 3).tolist()
        wanted = tangled(*map(np.float64, numbers))
        given = interpreted(made, {"memory": numbers})
        np.testing.assert_allclose(given, [wanted["a"], wanted["b"], 2.5], rtol=1e-14)
        taken.add((numbers[0] < 0, numbers[1] > 0.2, numbers[0] < 0.5, numbers[2] > 0))
    assert len(taken) > 8


def test_the_same_operation_is_written_down_once_and_what_is_unused_not_at_all():
    sheet = Sheet()
    x, y = (sheet.symbol("memory", i) for i in range(2))
    assert x + y is x + y
    assert x * 2 is x * 2.0
    product = x * y
    made = program(sheet, [product, product + 1], [(0,), (1,)])
    assert [OPERATIONS[row[0]] for row in made.code] == [
        "memory",
        "memory",
        "multiply",
        "constant",
        "add",
    ]
    assert len(parts([product])) == 3


def test_what_a_symbol_cannot_do_is_an_error():
    x = Sheet().symbol("memory", 0)
    for wrong in (lambda: float(x), lambda: x**3, lambda: np.zeros(2).__setitem__(0, x)):
        with pytest.raises((TypeError, ValueError)):
            wrong()


def test_a_function_with_no_end_of_paths_is_an_error():
    sheet = Sheet()
    symbols = [sheet.symbol("memory", i) for i in range(12)]
    with pytest.raises(RuntimeError, match="more than 1000 paths"):
        sheet.every_path(lambda: {"n": sum(1.0 for x in symbols if x > 0)})


def started(model, *, memory=(), height=0.5):
    """The state of a scene at its start, and where its bodies and sites are, as words."""
    data = mujoco.MjData(model)
    data.qpos[2] = height
    physics = np.zeros(mujoco.mj_stateSize(model, STATE))
    mujoco.mj_getState(model, data, physics, STATE)
    places = np.concatenate([model.body_pos.ravel(), model.site_pos.ravel()])
    return native.to_words(np.concatenate([physics, memory])), native.to_words(places)


def numbers(words):
    return np.asarray(words).view(np.float64)


@needs_native
def test_every_operation_of_the_native_step_is_that_of_python(model):
    sheet = Sheet()
    a, b, c = (sheet.symbol("memory", i) for i in range(3))
    action = sheet.symbol("action", 3)
    x, y = abs(a) + 0.5, b * b + 0.25
    results = [
        *(a + b, a - b, a * b, a / y, -a, abs(a), np.sqrt(x), np.exp(a), x.log()),
        *(a.sin(), b.cos(), a < b, a <= a, b <= a, a == a, a == b, both(a < b, c < b), action),
        *(lesser(a, b), greater(a, b), select(a < b, a, c), select(b < a, a, c), 2.5 * action),
    ]
    made = program(sheet, [*results, c + 1, a, b], [(0,), (1,), (2,)])
    assert {OPERATIONS[row[0]] for row in made.code} == set(OPERATIONS) - {"read", "touch"}
    scene = Scene(model, GUIDE, made, len(results))
    memory = [0.3, 0.7, -1.2]
    state, places = started(model, memory=memory)
    acted = np.array([0.0, 0.0, 0.0, 0.375], np.float32)
    after, seen = step_scenes(scene.words, places, state, acted, len(results))
    wanted = interpreted(made, {"memory": memory, "action": acted.tolist()})
    np.testing.assert_allclose(seen, np.array(wanted[:-3], np.float32), rtol=1e-7)
    np.testing.assert_array_equal(numbers(after)[-3:], [-1.2 + 1, 0.3, 0.7])


@needs_native
def test_the_guide_moves_the_hand_and_what_is_read_is_of_that_moment(model):
    sheet = Sheet()
    sizes = dict(zip(FIELDS, (3, 3, 4, 9, 3, 9, 3, 9), strict=True))
    read = [
        sheet.symbol("read", FIELDS.index(name), i) for name in FIELDS for i in range(sizes[name])
    ]
    scene = Scene(model, GUIDE, program(sheet, read, []), len(read))
    state, places = started(model)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    for t in range(30):
        action = rng.uniform(-1.5, 1.5, 4).astype(np.float32)
        state, seen = step_scenes(scene.words, places, state, action, len(read))
        moved = np.clip(action[:3], -1, 1) * np.float32(GUIDE.scale)
        data.mocap_pos[0] = np.clip(data.mocap_pos[0] + moved, GUIDE.low, GUIDE.high)
        data.mocap_quat[0] = [1, 0, 1, 0]
        data.ctrl[:] = action[3], -action[3]
        mujoco.mj_step(model, data, nstep=GUIDE.num_substeps)
        mujoco.mj_forward(model, data)
        physics = np.zeros(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, data, physics, STATE)
        np.testing.assert_array_equal(numbers(state), physics, err_msg=str(t))
        wanted = [getattr(data, name).flat[i] for name in FIELDS for i in range(sizes[name])]
        np.testing.assert_array_equal(seen, np.array(wanted, np.float32))
    assert abs(data.body("hand").xpos[2] - 0.5) < 0.06


@needs_native
def test_a_touch_is_that_of_both_pads(model):
    sheet = Sheet()
    palm, left, right, box = (
        model.geom(name).id for name in ("palm", "left_pad", "right_pad", "box")
    )
    touches = [sheet.symbol("touch", geom, left, right) for geom in (box, palm)]
    scene, places = Scene(model, GUIDE, program(sheet, touches, []), 2), started(model)[1]
    data = mujoco.MjData(model)
    told = []
    for where in ([0, 0, 0.62], [0, 0.035, 0.5], [0, 0, 0.5]):  # apart, at one pad, between both
        mujoco.mj_resetData(model, data)
        data.qpos[7:12] = [-0.052, 0.052, *where]
        state = np.zeros(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, data, state, STATE)
        after, seen = step_scenes(
            scene.words, places, native.to_words(state), np.eye(4, dtype=np.float32)[3], 2
        )  # the gripper closes
        mujoco.mj_setState(model, data, numbers(after).copy(), STATE)
        mujoco.mj_forward(model, data)
        for geom, one in zip((box, palm), np.asarray(seen), strict=True):
            forces = [
                sum(
                    data.efc_force[data.contact[i].efc_address]
                    for i in range(data.ncon)
                    if {geom, pad} == set(data.contact[i].geom.tolist())
                )
                for pad in (left, right)
            ]
            assert one == float(min(forces) > 0)
        told.append(float(seen[0]))
    assert told == [0, 0, 1]


@needs_native
def test_lanes_of_several_scenes_are_each_its_own_whatever_stands_beside(model):
    other = mujoco.MjModel.from_xml_string(HAND.replace('mass="1"', 'mass="3"'))
    sheet = Sheet()
    hand = [sheet.symbol("read", FIELDS.index("xpos"), 6 + i) for i in range(3)]
    goal = [sheet.symbol("read", FIELDS.index("site_xpos"), i) for i in range(3)]
    made = program(sheet, [*hand, *goal], [])
    scenes = [Scene(each, GUIDE, made, 6) for each in (model, other)]
    order = [0, 1, 1, 0, 1]
    words = np.stack([scenes[i].words for i in order])
    states, places = (np.stack(x) for x in zip(*(started(model) for _ in order), strict=True))
    moved = places.view(np.float64).copy()
    moved[:, -3:] += np.arange(5.0)[:, None]
    places = native.to_words(moved)
    action = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    step = jax.vmap(lambda *lane: step_scenes(*lane, 6))
    together, seen = step(words, places, states, action)
    alone = [step_scenes(words[i], places[i], states[i], action[i], 6) for i in range(len(order))]
    np.testing.assert_array_equal(together, np.stack([state for state, _ in alone]))
    np.testing.assert_array_equal(seen, np.stack([told for _, told in alone]))
    np.testing.assert_allclose(
        seen[:, 3:] - seen[0, 3:], np.arange(5.0)[:, None] * np.ones(3), atol=1e-6
    )
    assert not np.array_equal(seen[0, :3], seen[1, :3])


@needs_native
def test_a_lane_without_an_action_is_nan_one_that_diverges_begins_anew_and_others_go_on(model):
    sheet = Sheet()
    scene = Scene(model, GUIDE, program(sheet, [sheet.symbol("read", 0, 0)], []), 1)
    state, places = started(model)
    gone = numbers(state).copy()
    gone[:2] = 10.0, 1e12  # time, and where the hand is
    states = np.stack([state, native.to_words(gone), state])
    actions = np.zeros((3, 4), np.float32)
    actions[2, 1] = np.nan
    step = jax.vmap(lambda *lane: step_scenes(*lane, 1))
    where = np.stack([scene.words] * 3), np.stack([places] * 3)
    after, seen = step(*where, states, actions)
    assert np.isnan(np.asarray(seen)[:, 0]).tolist() == [False, False, True]
    assert np.isnan(numbers(after)[2]).all()
    assert np.isfinite(numbers(after)[:2]).all()
    assert numbers(after)[1, 0] == numbers(after)[0, 0]  # MuJoCo's clock begins anew, too
    later, seen = step(*where, after, np.zeros((3, 4), np.float32))
    assert np.isnan(np.asarray(seen)[:, 0]).tolist() == [False, False, True]
    assert np.isnan(numbers(later)[2]).all()


@needs_native
def test_buffers_that_do_not_fit_the_scene_are_an_error(model):
    sheet = Sheet()
    scene = Scene(model, GUIDE, program(sheet, [sheet.symbol("read", 0, 0)], []), 1)
    state, places = started(model)
    for wrong in (
        (places[:-6], state, 4, 1),
        (places, state[:-2], 4, 1),
        (places, state, 3, 1),
        (places, state, 4, 2),
    ):
        action = np.zeros(wrong[2], np.float32)
        with pytest.raises((ValueError, RuntimeError), match="do not fit the scene"):
            after, _ = step_scenes(scene.words, *wrong[:2], action, wrong[3])
            after.block_until_ready()


@needs_native
def test_an_error_of_mujocos_is_an_exception():
    """An arena that is too small for what falls on the floor."""
    heap = '<geom type="plane" size="9 9 1"/>' + "".join(
        f'<body pos="2 {i} 0.05"><freejoint/><geom size="0.1"/></body>' for i in range(5)
    )
    small = HAND.replace("<option", '<size memory="60000"/><option').replace(
        "<site", heap + "<site"
    )
    model = mujoco.MjModel.from_xml_string(small)
    sheet = Sheet()
    scene = Scene(model, GUIDE, program(sheet, [sheet.symbol("read", 0, 0)], []), 1)
    state, places = started(model)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="MuJoCo: "):
            after, _ = step_scenes(scene.words, places, state, np.zeros(4, np.float32), 1)
            after.block_until_ready()
