"""All tests with generated input, with many more examples than in a run of the tests. See ``python -m tests.fuzz --help``."""
