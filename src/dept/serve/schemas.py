"""What the HTTP API takes and gives, as typed objects: the OpenAPI document follows from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Verdict = Literal["improved", "uncertain", "harmful"]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: Any = Field(description="a sentence, or the list of wrong fields")


class Ranked(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class PredictedImage(BaseModel):
    """What was predicted for one image, or why nothing was."""

    name: str = Field(description="file name, as it was sent")
    error: str | None = Field(default=None, description="why the image could not be predicted")
    domain: str | None = Field(
        default=None, description="the domain whose adapter was used; source for the source model"
    )
    version: int | None = Field(default=None, description="the version of the adapter; 0 for the source model")
    label: str | None = None
    confidence: float | None = None
    topk: list[Ranked] = []
    new_domain: bool = Field(default=False, description="no domain was given, and the image is like none that is known")
    distance: float | None = Field(
        default=None, description="from the nearest domain, in its radius, if no domain was given"
    )


class Timing(BaseModel):
    """Where the time of a request went, in milliseconds."""

    decode_ms: float
    queue_ms: float
    forward_ms: float
    total_ms: float


class Predicted(BaseModel):
    """The answer to a prediction request."""

    predictions: list[PredictedImage]
    timing: Timing


class Limits(BaseModel):
    """What a request may ask for."""

    max_images: int
    max_body_bytes: int
    max_upload_bytes: int
    max_pixels: int
    queue: int
    requests_per_second: float


class ServerInfo(BaseModel):
    """The model that is served, and who asks."""

    version: str
    arch: str
    classes: list[str]
    image_size: int
    backbone_sha256: str
    backbone_bytes: int
    adapter_bytes: int = Field(description="all resident adapters together")
    domains: list[str]
    routing: bool = Field(description="whether images without a domain can be routed")
    folders: list[str] = Field(description="where an adaptation may read images on the server")
    offline_methods: list[str]
    online_methods: list[str]
    limits: Limits
    process: str
    started: float = Field(description="Unix time")
    you: str = Field(description="name of the caller's token")
    role: Literal["predict", "operate"]


class Gain(BaseModel):
    """The change of accuracy against the source model, as far as it is known. Fractions."""

    verdict: Verdict
    gain: float
    low: float
    high: float
    basis: Literal["labels", "class shares"] = Field(
        description="labels prove it; class shares assume them as expected"
    )
    images: int = Field(default=0, description="images that it rests on")


class Latency(BaseModel):
    """Of the latest requests, in milliseconds; null without any."""

    p50_ms: float | None
    p99_ms: float | None


class Drift(BaseModel):
    """How far the traffic has moved from the images of the domain, in deviations of an image."""

    value: float | None = Field(description="null if too few images were seen, or the domain's images are not known")
    drifted: bool
    threshold: float


class Online(BaseModel):
    """Online adaptation of a domain."""

    mode: Literal["off", "shadow", "on"]
    method: str = ""
    state: str = Field(default="", description="stopped, starting, learning, failed, or: elsewhere, in another process")
    images: int = Field(default=0, description="learned from")
    dropped: int = Field(default=0, description="not learned from, because learning was slower than the traffic")
    updates: int = 0
    published: int = Field(default=0, description="versions that were published")
    refused: int = Field(default=0, description="versions that were not, because they would have been harmful")
    comparison: Gain | None = Field(default=None, description="latest candidate against the source model")
    detail: str = ""


class DomainStatus(BaseModel):
    """A domain as it is served now."""

    name: str
    active: int = Field(description="active version; 0 for the source model")
    previous: int | None = Field(description="what a rollback would serve; null if there is nothing before")
    versions: int
    pinned: bool
    health: Literal["ok", "warning", "problem", "unknown"]
    reasons: list[str] = Field(description="why health is not ok, as sentences")
    verdict: Gain | None = Field(description="of the active version: by labels, or else when it was adapted")
    live_gain: Gain | None = Field(description="by the latest traffic, from 50 compared images on")
    drift: Drift
    online: Online
    images: int = Field(description="predicted since the server started")
    requests: int
    errors: int
    images_per_minute: float
    latency: Latency
    last_image: float | None = Field(description="Unix time")
    created: float


class VersionInfo(BaseModel):
    """A version of a domain's adapter."""

    number: int
    active: bool
    sha256: str
    bytes: int
    method: str
    images: int
    job: str = Field(description="the adaptation that made it; empty for an upload")
    verdict: Gain | None
    note: str
    created: float
    made_by: str
    can_be_checked: bool = Field(description="whether disagreements with the source model can be labelled")


class ChangeInfo(BaseModel):
    """A line of the history: who did what, and when."""

    at: float
    made_by: str
    action: str
    version: int
    detail: str


class Recent(BaseModel):
    """One of the latest images of a domain, with the prediction of the source model and that of the adapter."""

    at: float
    name: str
    thumbnail: str = Field(description="a small JPEG as a data URI")
    version: int
    before: Ranked
    after: Ranked
    changed: bool


class Activate(BaseModel):
    """Which version to serve."""

    version: int = Field(ge=0, le=2**53, description="0 for the source model")
    force: bool = Field(default=False, description="serve it although it was judged harmful")


class Pin(BaseModel):
    """Whether a domain stays at its active version."""

    pinned: bool


class SetOnline(BaseModel):
    """How a domain adapts online."""

    mode: Literal["off", "shadow", "on"]
    method: str = Field(default="dept", max_length=64, description="one of the online methods")


class Question(BaseModel):
    """An image on which the model before and after disagree. Show the two classes in the order of `swapped`."""

    image: str
    before: str
    after: str
    right: str = Field(description="before, after or neither, if it is labelled already; else empty")
    picture: str = Field(description="JPEG as a data URI")
    swapped: bool = Field(description="whether `after` stands on the left, so that nobody knows which model is which")


class Questions(BaseModel):
    """The images to label, and what the labels say so far."""

    images: int
    disagreeing: int
    classes: list[str]
    questions: list[Question]
    verdict: Gain | None


class Labels(BaseModel):
    """Answers: image -> before, after or neither."""

    labels: dict[str, Literal["before", "after", "neither"]] = Field(min_length=1, max_length=1000)


class JobInfo(BaseModel):
    """An offline adaptation."""

    id: str
    domain: str
    state: Literal["queued", "running", "finished", "failed", "cancelled", "interrupted"]
    method: str
    promote: Literal["never", "improved"]
    images: int
    source: str = Field(description="upload, or the folder that is read")
    created: float
    made_by: str
    started: float | None = None
    ended: float | None = None
    stage: str = Field(default="", description="what is being done: a candidate method, check, …")
    step: int = 0
    steps: int = 0
    progress: float = Field(default=0.0, description="share of the present stage, 0 to 1")
    eta_seconds: float | None = None
    version: int | None = Field(default=None, description="the version that it made")
    verdict: Gain | None = None
    promoted: bool = False
    message: str = Field(default="", description="how it ended, or why it failed")
