"""Public suites of NKI kernels, which are not part of this repository: found in a folder, run, and judged.

`python -m conformance.nki` runs what it finds in the folder that NKI_SUITES names: `aws-neuron-sdk` (tests of single
instructions, Beta 1), `nki-samples` (kernels of tutorials, both dialects) and `nki-library` (kernels and their tests).
"""
