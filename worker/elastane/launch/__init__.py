"""Scripts that know nothing of Elastane, run as a black box on hosts that come and go.

`plan` says which rank runs where and what it is told, `policy` when everything starts again, `launcher` does
it. Bits and data are the script's own affair here: it is restarted as a whole, as torchrun does it.
"""
