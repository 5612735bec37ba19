"""What all tests begin with."""

import signal

# A shell starts what it runs in the background with SIGINT ignored, and programs inherit that: tests of Ctrl-C would then wait
# for an end that never comes. A handler of our own is reset to the default in every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
