"""`triolet serve` with the troubled worker: `python -m triolet.loadtest.chaos.troubled_server OPTION …`."""

import sys
from functools import partial

from ...actors.supervisor import child_process, supervisor
from ...cli.serve import serve
from .troubled_worker import MODULE

if __name__ == "__main__":
    child_process.start_worker = supervisor.start_worker = partial(child_process.start_worker, module=MODULE)
    serve(sys.argv[1:])
