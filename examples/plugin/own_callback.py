"""A callback of your own by name: `--callbacks good-enough` once the package is there."""

import adaptax


class GoodEnough(adaptax.Callback):
    """Ends a run whose agent comes to -0.5 in its last episode on held-out tasks."""

    def on_evaluation(self, run, row):
        """After every evaluation."""
        if row["episodes"][-1]["return_mean"] > -0.5:
            run.stop("good enough")
