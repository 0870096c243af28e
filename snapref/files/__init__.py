"""Names on disk and the modules they belong to."""
