"""The file with an enrolment token that an operator carried to this machine."""

import structlog

from lunanexa_core.identity.token import BadToken, EnrolmentToken, parse_token
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.private_files import PrivateFiles

_log = structlog.get_logger()


class TokenFile:
    """One file of a folder."""

    def __init__(self, files: PrivateFiles, name: str) -> None:
        self._files = files
        self._name = name

    @property
    def place(self) -> str:
        return self._files.place(self._name)

    def read(self) -> EnrolmentToken | None:
        """``None``: there is no such file. Raises ``PortFault`` for one that holds no token, ``PortUnavailable`` as
        files do."""
        data = self._files.read(self._name)
        if data is None:
            return None
        token = parse_token(data.decode("ascii", "replace"))
        if isinstance(token, BadToken):
            raise PortFault(f"{self.place} holds no enrolment token: {token.problem}; have it minted anew")
        return token

    def spent(self) -> None:
        """Removes the file; that fails quietly, for a spent token lets nobody in."""
        try:
            self._files.remove(self._name)
        except PortError as error:
            _log.warning("token_file_stays", reason=str(error))
