"""What a release consists of, made from one commit: sdist, wheel, bill of materials, notes, signed checksums.

`__main__.py` has the commands.
"""
