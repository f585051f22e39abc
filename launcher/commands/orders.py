"""What an operator asks of a member about views: by that member's own certificate, where there are certificates."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from launcher.certificate_files import certificate_files
from peer.errors import InputError, nearest
from peer.network.transport.tls import Certificates
from peer.network.views.orders import Ask, asking
from peer.spec.agreement import digests
from peer.spec.federation import Spec


def check(spec: Spec, ids: Collection[str], what: str) -> None:
    """InputError where members stay the same, or one of these is none of the federation."""
    if spec.on_loss != "bypass":
        raise InputError(
            f"nobody can {what} with `on_loss: {spec.on_loss}`, as the others would wait; that needs `on_loss: bypass` "
            "from the start of the run"
        )
    if strangers := [id for id in ids if id not in spec.ids]:
        raise InputError(f"`{strangers[0]}` is none of the ring; {nearest(strangers[0], spec.ids)}")


def own_certificate(id: str, directory: Path | None, files: tuple[Path, Path, Path] | None) -> Certificates | None:
    """That member's, of a directory or by its three files; None where there are none. InputError if it is another's."""
    if files:
        found = Certificates.of_anybody(*files)
        if found.id != id:
            raise InputError(f"{files[1]}: is made out to {found.id or 'nobody'}; {id} obeys its own certificate only")
    elif directory:
        found = Certificates(id, **certificate_files(directory, id))
    else:
        return None
    found.read()
    return found


def member(spec: Spec, id: str, certificates: Certificates | None) -> AbstractAsyncContextManager[Ask]:
    """Ask that member; UnansweredError where there is no answer."""
    agreement = spec.agreement()
    return asking(id, spec.addresses, agreement, digests(agreement), certificates)
