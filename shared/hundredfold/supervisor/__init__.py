"""Runs several services as child processes of one command: start, readiness, restarts, an orderly end."""
