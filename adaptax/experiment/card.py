"""The card of an exported agent, in the form of model cards of the Hugging Face Hub.

YAML between two rules, with the figures as `model-index`, then what a person reads.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.errors import ConfigError
from adaptax.envs.registry import find_suite
from adaptax.experiment.console import shell_command
from adaptax.experiment.evaluation import repeats_in_words, tasks_in_words
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.logger import Row, by_last_protocol
from adaptax.experiment.own_parts import loading, own_parts
from adaptax.experiment.reproduce import command_of, from_python


def card(
    config: dict[str, Any],
    evaluations: Sequence[Row],
    progress: Sequence[Row],
    name: str,
    files: Collection[str],
) -> str:
    """The text of README.md for the agent `name`, whose last evaluation is of its weights.

    `config` is what `config.json` holds, `files` the names of what is beside the card.
    """
    first, row = by_last_protocol(evaluations)[0], evaluations[-1]
    before = first if first["iteration"] == 0 != row["iteration"] else None
    parts = [
        _front_matter(config, row, name),
        _about(config, files),
        _use(config, name),
        _figures(row, before),
        _training(config, row, progress),
    ]
    return "\n".join(parts)


def _front_matter(config: dict[str, Any], row: Row, name: str) -> str:
    """The YAML; its texts are written as JSON, which YAML reads."""
    algorithm, suite = config["algorithm"]["name"], config["suite"]["name"]
    episodes = _named_episodes(row)
    which = {name: episodes[name] for name in (next(iter(episodes)), next(reversed(episodes)))}
    lines = [
        "---",
        "library_name: adaptax",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in ("reinforcement-learning", "meta-learning")),
        *(f"- {json.dumps(tag)}" for tag in (algorithm, suite)),
        "model-index:",
        f"- name: {json.dumps(name)}",
        "  results:",
        "  - task:",
        "      type: reinforcement-learning",
        "      name: reinforcement learning",
        "    dataset:",
        f"      type: {json.dumps(suite)}",
        f"      name: {json.dumps(suite)}",
        "    metrics:",
    ]
    for words, episode in which.items():
        for kind, metric in (("return", "mean_reward"), ("success", "success_rate")):
            if episode[f"{kind}_mean"] is not None:
                lines += [
                    f"    - type: {metric}",
                    f"      value: {episode[f'{kind}_mean']:.4f}",
                    f"      name: mean {kind} in {words}",
                    "      verified: false",
                ]
    return "\n".join([*lines, "---", ""])


def _about(config: dict[str, Any], files: Collection[str]) -> str:
    algorithm, suite = config["algorithm"]["name"], config["suite"]["name"]
    video = next((name for name in files if name.startswith("video.")), None)
    shown = {
        None: "",
        "video.gif": "\n![An episode before and one after adaptation](video.gif)\n",
    }.get(video, "\n[An episode before and one after adaptation](video.mp4)\n")
    return f"""# {algorithm} on {suite}

An agent of the algorithm `{algorithm}`{_summary(find_algorithm, algorithm)}, trained with adaptax
on `{suite}`{_summary(find_suite, suite)}.
{shown}"""


def _use(config: dict[str, Any], name: str) -> str:
    run_dir, own = f"runs/{name}", own_parts(config)
    networks = ", networks" if "networks" in own else ""
    begin, more = "`adaptax train ... --init-from` begins", ""
    evaluating = f"\n{shell_command('evaluate', run_dir)}"
    if own:
        begin, evaluating = "`adaptax.train(..., init_from=...)` begins", ""
        more = f"\ntrainer = {loading(Path(run_dir), config)}  # then load(), evaluate()"
    return f"""## Use

```sh
{shell_command("import", name, run_dir)}{evaluating}
```

```python
import adaptax

agent = adaptax.load({json.dumps(run_dir)}{networks}){more}
```

It has weights for acting and adapting, without optimizer: {begin}
with them, `adaptax resume` does not.
"""


def _figures(row: Row, before: Row | None) -> str:
    """The evaluation as a table, beside that before training."""
    success = row["episodes"][0]["success_mean"] is not None
    columns = ["episode", "return", *(["before training"] if before else [])]
    columns += ["success"] if success else []
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    untrained = _named_episodes(before) if before else {}
    for words, episode in _named_episodes(row).items():
        cells = [words.removeprefix("episode "), _cell(episode, "return")]
        cells += [_cell(untrained[words], "return")] if untrained else []
        cells += [_cell(episode, "success")] if success else []
        lines.append(f"| {' | '.join(cells)} |")
    on = f"{row['num_tasks']} {tasks_in_words(row)}{repeats_in_words(row)}"
    table = "\n".join(lines)
    tested = ", and of test episodes of what they led to" if "test" in row else ""
    return f"""## Figures

Mean return of each episode in a row on {on}{tested}, evaluated at
iteration {row["iteration"]}, with 95 % intervals over {row["interval_over"]}:

{table}
"""


def _named_episodes(row: Row) -> dict[str, Any]:
    """The figures of each episode in a row, and of the test episodes, in words."""
    named = {f"episode {episode['index']}": episode for episode in row["episodes"]}
    return {**named, "test episodes": row["test"]} if "test" in row else named


def _training(config: dict[str, Any], row: Row, progress: Sequence[Row]) -> str:
    seed, versions = config["trainer"].get("seed", 0), config.get("versions", {})
    minutes = progress[-1]["seconds"] / 60 if progress else 0.0
    exact = ", ".join(f"{package} {number}" for package, number in versions.items())
    what = f"of what this\ncommand trains:\n\n```sh\n{command_of(config, [seed])}\n```"
    if told := from_python(config):
        what = f"seed {seed}.\n{told}"
    return f"""## Training

Weights after {row["iteration"]} iterations and {row["num_steps"]:,} environment steps,
{minutes:.0f} minutes, on {config.get("processor")}, device {config.get("device")}, {what}

Versions: {exact}.

`config.json` has every setting; `progress.jsonl` and `evaluations.jsonl` the curves, thinned.
"""


def _summary(find: Any, name: str) -> str:
    """In brackets what the registry says of a name; nothing where it does not know it."""
    try:
        return f" ({find(name).summary})"
    except ConfigError:
        return ""


def _cell(episode: dict[str, Any], name: str) -> str:
    return figure_text(episode[f"{name}_mean"], episode[f"{name}_ci"])
