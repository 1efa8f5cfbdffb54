"""A real `triolet serve` whose event loop is stuck for ever as soon as somebody asks whether it is ready."""

SCRIPT = """
import sys, threading
from triolet.actors.engine import Engine
from triolet.cli.serve import serve

async def wait_for_ever(engine):
    print("stuck", flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

Engine.health = wait_for_ever
serve(sys.argv[1:])
"""
