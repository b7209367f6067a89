"""Suites that this project did not write, run against the device and judged by what the CPU answers.

The samples come from the tables inside the installed PyTorch wheel (op_db, module_db, optim_db). For each of them the
same call is made on the CPU and on the device, with the same seed, and results, gradients, mutated inputs, aliases and
errors are compared. What the CPU itself refuses is not counted. ``python -m conformance --help`` lists the options.
"""
