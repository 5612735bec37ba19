"""A seeded sample of mutants of the pure modules: do the unit tests notice a small change?

modules     which modules are pure, and the unit tests of each program
mutants     every mutant of a module, and the sample; the changes come from Cosmic Ray
reach       which tests run a line, by coverage
trial       copies of the checkout in which mutants are tried
equivalent  mutants that change nothing, in equivalent.txt, each with the reason
__main__    the command line, the results file and the score
"""
