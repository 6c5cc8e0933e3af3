"""Task suites: families of tasks with their environment, one file each."""
