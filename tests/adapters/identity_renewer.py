"""A process that dies by SIGKILL in the middle of a rotation of its node's identity.

Usage: python -m tests.adapters.writers, then ``identity CALL FOLDER`` on its stdin.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from lunanexa_adapters.crypto.authority import make_authority
from lunanexa_adapters.crypto.credentials import TRUSTED_FILE, TlsCredentials
from lunanexa_core.identity.certificate import terms_at
from tests.adapters.pki import NODE, NOW_S


def renew(call: int, folder: Path) -> None:
    """Trusts another authority too, takes its certificate, trusts it alone, forgets all; and dies right before its
    ``call``-th call of the system."""
    left = call

    def count(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if event == "c_call" and called.__module__ in ("posix", "_io"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    old, new = (folder / TRUSTED_FILE).read_text(), make_authority(NOW_S)
    sys.setprofile(count)
    credentials = TlsCredentials(folder)
    credentials.trust([old, new.public.certificate])
    chain = new.issue(credentials.request(), terms_at(NODE, "beef", NOW_S * 1_000))
    assert chain is not None
    credentials.accept(chain)
    credentials.trust([new.public.certificate])
    credentials.forget()
    sys.setprofile(None)
