"""Runs scripts that do not use Elastane, as a black box on hosts that come and go.

`plan` assigns ranks to hosts and sets their variables, `policy` decides when everything restarts, `launcher`
executes it. Bits and data are up to the script here: it is restarted as a whole, as torchrun does.
"""
