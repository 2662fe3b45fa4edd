"""What every test runs under."""

import signal

import torch as th

# A shell that is not interactive starts what runs in the background with SIGINT ignored, and processes inherit that: no
# test of Ctrl-C would pass, here or in a process of its own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The networks here are too small for more: a second thread only adds waiting.
th.set_num_threads(1)
