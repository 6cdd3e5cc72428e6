"""A broken world, as every adapter raises it.

Expected refusals are *returned* by a port as values. What is raised says that the world itself
failed: :class:`PortUnavailable` when trying again may help, :class:`PortFault` when it will not.
"""


class PortError(Exception):
    """Base of what a port raises; never raised itself."""


class PortUnavailable(PortError):
    """The other side can't be reached or did not answer in time; a retry may help."""


class PortFault(PortError):
    """The other side is there and is wrong (corrupt file, protocol broken); a retry won't help."""
