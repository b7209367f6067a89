"""The older dialect of NKI under the name that its kernels import: `import neuronxcc.nki as nki`.

No compiler is in here. What kernels of NKI Beta 1 say is traced, checked and run by the package `nki`, on which this
one stands; docs/nki-beta1.md says how the two differ.
"""
