"""One worker of a channel as a process: does what it is told, prints a JSON line for each."""

import json
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "inst" / "python"))

from channels import make_spec  # noqa: E402

from gpukeras.core.errors import ClusterError  # noqa: E402
from gpukeras.distributed.channel.channel import open_channel  # noqa: E402

SAYING = threading.Lock()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it


def say(**event):
    with SAYING:
        print(json.dumps(event), flush=True)


def take_rounds(channel, count):
    # Rounds of exchange as a training makes them.
    for number in range(count):
        told = channel.exchange("epoch", {"worker": channel.index, "number": number})
        assert told == [{"worker": i, "number": number} for i in range(channel.size)]
        say(round=number)
        time.sleep(0.01)


def send_much(channel, megabytes):
    data = bytes(range(256)) * (4096 * megabytes)
    assert channel.gather(data if channel.index == 0 else b"")[0] == data
    gathered = channel.gather(bytes([channel.index]) * channel.index)
    assert gathered == [bytes([i]) * i for i in range(channel.size)]
    say(sent=len(data))


def look_for_fault(channel, limit_s):
    error = channel.fault(limit_s)
    say(fault=error and error.message)


def rest(channel):
    channel.rest()
    say(rests=True)
    sys.stdin.readline()
    channel.resume()


def run_step(channel, name, *values):
    steps = {
        "rounds": take_rounds,
        "send": send_much,
        "rest": rest,
        "exit": lambda channel: sys.exit(),
        "look": look_for_fault,
        "fail": lambda channel, text: channel.fail(ValueError(text)),
        "watch": lambda channel: threading.Event().wait(60),  # blocked in something else
    }
    steps[name](channel, *values)


def on_loss(message):
    say(lost=message)


def main(options):
    before = threading.active_count()
    spec = make_spec(options["control"], options["size"], options["index"], options["timeout_s"])
    try:
        channel = open_channel(spec, options["description"], on_loss, options["join_timeout_s"])
        say(joined=True)
        for step in options["steps"]:
            run_step(channel, *step)
        channel.close()
    except ClusterError as error:
        say(error=error.message, details=error.details)
    except KeyboardInterrupt as error:
        channel.fail(error)
        say(error="interrupted")
    if "channel" in locals():
        channel.close()
    say(threads=threading.active_count() - before)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
