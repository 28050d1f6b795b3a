"""One small program per use, each run by a test as it stands here."""
