import os

# Two test processes share two cores; read when torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
