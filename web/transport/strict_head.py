"""h11 with one reading of a head: what another server might read differently is refused before h11 parses it.

h11 accepts a bare LF, a folded field, any method, HTTP/1.9 and `Content-Length: 5, 5`. A proxy in front may not, and
requests are smuggled where two readings differ. A first line that cannot become a request's, such as an SSH banner, is
refused as soon as it is seen. Two things are accepted that h11 refuses (RFC 9112, 2.2 and 9.6): empty lines before a
request, and bytes after a request that closes, which are ignored.
"""

import re
from typing import Any, Final, NamedTuple

import h11

METHOD: Final = re.compile(rb"[A-Z]{1,20}(?:-[A-Z]{1,20})?")  # as registered: the longest has 17 letters
_METHOD: Final = METHOD.pattern
_FIRST_LINE: Final = re.compile(rb"%b [!-~]+ HTTP/1\.[01]\r\n|PRI \* HTTP/2\.0\r\n" % _METHOD)
_OTHER_VERSION: Final = re.compile(rb"%b [!-~]+ HTTP/[0-9]\.[0-9]\r\n" % _METHOD)
_BEGINNING: Final = re.compile(rb"[A-Z-]{1,41}(?: [!-~]*(?: [HTP/0-9.]{0,8}\r?)?)?")  # of a first line
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)+")
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLDED: Final = re.compile(rb"\r\n[ \t]")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


class HeadFault(NamedTuple):
    """Why a head is refused, and with which status."""

    status: int
    reason: str


_BAD_LINE: Final = HeadFault(400, "The first line is not `METHOD /path HTTP/1.1`, with a method in capital letters.")


def head_fault(data: bytes) -> HeadFault | None:
    """What is wrong with the head at the start of `data`, which may be incomplete; None if nothing is, so far."""
    line_end = data.find(b"\n") + 1
    if not line_end:
        return None if not data or _BEGINNING.fullmatch(data) else _BAD_LINE
    line = data[:line_end]
    if not _FIRST_LINE.fullmatch(line):
        return (
            HeadFault(505, "This server speaks HTTP/1.1 and HTTP/2.") if _OTHER_VERSION.fullmatch(line) else _BAD_LINE
        )
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[: end + 4]
    if _BARE.search(head):
        return HeadFault(400, "A line of the head must end with CRLF, not with CR or LF alone.")
    if _FOLDED.search(head):
        return HeadFault(400, "A header field must stand on one line.")
    lengths: list[bytes] = _LENGTH.findall(head)
    if len(lengths) > 1 or not all(map(bytes.isdigit, lengths)):
        return HeadFault(400, "Send one Content-Length, and one number in it.")
    return None


class StrictConnection(h11.Connection):
    refusal = ""  # why the head was refused

    def next_event(self) -> Any:  # Any: as h11 declares it, an event or a sentinel
        if self.their_state is h11.MUST_CLOSE:
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            if empty := _EMPTY_LINES.match(self.trailing_data[0]):
                self._receive_buffer.maybe_extract_at_most(empty.end())
            data = self.trailing_data[0]
            if data == b"\r":  # half an empty line, perhaps
                return h11.NEED_DATA
            if fault := head_fault(data):
                self.refusal = fault.reason
                raise h11.RemoteProtocolError(fault.reason, error_status_hint=fault.status)
        return super().next_event()
