"""How the tests run: in which order, on which worker, and how long they take.

times      runs make targets and prints where the time went
tiers      which cases of a matrix `make test` runs
order      which worker runs which file, and in which order
later      libraries that are imported when a test uses them
rewriting  the assertions of tests, rewritten once for all workers
"""
