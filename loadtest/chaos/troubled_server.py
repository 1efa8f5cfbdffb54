"""`triolet serve` with the troubled worker: `python -m triolet.loadtest.chaos.troubled_server OPTION …`."""

import sys
from functools import partial

from ...actors.supervisor import child_process, supervisor
from ...cli.serve import serve
from .troubled_worker import MODULE

if __name__ == "__main__":
    start_worker = partial(child_process.start_worker, module=MODULE)
    for module in (child_process, supervisor):
        module.start_worker = start_worker  # type: ignore[attr-defined]  # wherever it was imported to
    serve(sys.argv[1:])
