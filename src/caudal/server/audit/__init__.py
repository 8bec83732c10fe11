"""The audit log: who asked what, when; append-only, chained by hashes."""
