"""What `./run` is made of.

`plan` says which steps there are, `step` how each is put together, `arguments` which of them are wanted. `package`,
`machine` and `libraries` find out whether they can be run here. `execution` runs one, `session` ends what is left of it,
and `alone` runs again what failed. `verdict` tells what became of it, and `results` writes it down. `sequence` is all of
that, in order.
"""


class Failure(Exception):
    """Why nothing can be run."""
