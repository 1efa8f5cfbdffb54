"""The bodies of /v1/files and /v1/batches, and the lines of their files, as OpenAI writes them.

https://platform.openai.com/docs/api-reference/batch. Times are seconds since 1970.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled",
]  # fmt: skip
FilePurpose = Literal["batch", "batch_output"]
UNENDED: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")

DAY_SECONDS = 24 * 3600
FILE_SECONDS = 30 * DAY_SECONDS  # OpenAI's default for files of batches, and the longest that may be asked for
MAX_LINES = 50_000  # of one batch; OpenAI's


class FileObject(Struct, frozen=True, kw_only=True):
    """A stored file. `status` is OpenAI's old field, and always the same."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: FilePurpose
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(Struct, frozen=True, kw_only=True):
    """A page of files; `last_id` is the `after` of the next one."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class FileDeleted(Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class ExpiresAfter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long files are kept, from their creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=FILE_SECONDS)]


class CreateBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/batches."""

    input_file_id: Annotated[str, Meta(max_length=64)]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(Struct, frozen=True, kw_only=True):
    """Why a batch failed before its first line ran. `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct, frozen=True, kw_only=True):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Lines of a batch. `failed` are those in the error file."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct, frozen=True, kw_only=True):
    """A batch and where it stands. Each `…_at` is set when the batch reaches that status."""

    id: str
    endpoint: BatchEndpoint
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    object: Literal["batch"] = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class BatchList(Struct, frozen=True, kw_only=True):
    """A page of batches, newest first; `last_id` is the `after` of the next one."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class BatchLine(Struct, frozen=True, kw_only=True):
    """A line of an input file. `body` is that of a request to `url`."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: Raw


class LineResponse(Struct, frozen=True, kw_only=True):
    """What a request of this line would have been answered."""

    status_code: int
    request_id: str
    body: Raw


class LineError(Struct, frozen=True, kw_only=True):
    """Why a line was not run."""

    code: Literal["batch_expired", "batch_cancelled", "missing_file"]
    message: str


class LineResult(Struct, frozen=True, kw_only=True):
    """A line of an output or error file. The order of the lines may be another than in the input."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None
