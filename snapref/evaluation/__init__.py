"""Scores on characters that no adapter ever saw. Every number in the README comes from a command in here."""
