"""Training, evaluation, logs, plots and the command line."""
