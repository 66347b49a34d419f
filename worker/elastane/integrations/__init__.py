"""Integrations with other training libraries.

Each module subclasses the library's class and is imported in its place by the script. It needs the extra of
the same name; no other module of Elastane imports these modules or the libraries.
"""
