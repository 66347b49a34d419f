"""Scripts of other training libraries in a job; nothing else imports these modules, or the libraries.

Each subclasses the library's own class where a script's import names it, and needs the extra of that name.
"""
