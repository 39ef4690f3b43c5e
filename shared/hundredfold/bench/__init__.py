"""Measuring the speed of the server: load through the door, statistics, a mock to prove the tool against."""
