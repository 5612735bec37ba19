"""Runs suites of tests under the rules of macOS: ``pytest -p tests.darwin.plugin …``, or ``make darwin``.

What can be taken away from Linux is taken away in namespaces, for every process that a test starts: ``/proc``, ``/sys``, the
``ps`` of Linux, loopback addresses. What only differs for a program's own calls is replaced in every Python that a test starts,
except isolated ones (``-I``). Each rule names the fact of macOS that it stands for.

plugin      the pytest plugin
namespaces  takes /proc, /sys, ps and loopback addresses away
loopback    the loopback addresses that unit tests use
rules       the rules for one Python process
platform    makes our modules see ``sys.platform == "darwin"``
libsystem   functions of the C library that only one of the two systems has
kqueue      ``select.kqueue`` for what our programs ask of it
site        on the PYTHONPATH of the processes that tests start
wheels      whether the pinned requirements install on a Mac
programs    builds all Go programs for Macs
bin         commands of macOS that read the hidden /proc
"""
