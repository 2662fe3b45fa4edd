"""What every test runs under."""

import torch as th

# The networks here are too small for more: a second thread only adds waiting.
th.set_num_threads(1)
