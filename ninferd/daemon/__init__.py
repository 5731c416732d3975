"""The main process: lifecycle, preflight, supervisor, logs."""
