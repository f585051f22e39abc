"""The last that a page is told of a run."""

from launcher.page.document import Document
from launcher.page.making import document_of
from launcher.page.told import Told
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.spec.federation import Spec


def ending(spec: Spec, files: RunFiles, summary: Summary | None) -> Document | None:
    """The run as its report shows it; None where it left nothing to be read."""
    places = {id: files.out(id) for id in spec.ids if files.out(id).is_dir()}
    try:
        return document_of(Told.read(spec, places, summary), files.path.name) if places else None
    except (InputError, FailedError):
        return None  # `report_on` says why
