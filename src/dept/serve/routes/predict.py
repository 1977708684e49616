"""POST /v1/predict."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.datastructures import UploadFile

from dept.serve.options import MB
from dept.serve.pool import SOURCE
from dept.serve.routes.common import Serving, problems
from dept.serve.schemas import Predicted, PredictedImage, Ranked, Timing
from dept.serve.service import Answer, Given, Service

router = APIRouter(prefix="/v1", tags=["predict"])
_BODY = {
    "requestBody": {
        "required": True,
        "description": "One image as the body itself, or one or more as the files `images` of a form.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "image/jpeg": {"schema": {"type": "string", "format": "binary"}},
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post("/predict", responses=problems(404, 415), openapi_extra=_BODY)
async def predict(
    request: Request,
    service: Serving,
    domain: Annotated[str | None, Query(max_length=64, description="by default each image's nearest domain")] = None,
    topk: Annotated[int, Query(ge=1, le=100, description="classes per image")] = 5,
    deadline_ms: Annotated[int | None, Query(ge=1, le=600_000, description="time after which to give up")] = None,
) -> Predicted:
    """Label one or more images.

    Images that cannot be decoded have an `error` in place of a label. If that is true of all, the status is 422.
    """
    began = time.perf_counter()
    images = await _images(request, service)
    given, answers = await service.predict(images, domain, deadline_ms)
    seconds = time.perf_counter() - began
    service.saw(given, answers, seconds)
    if not any(answers):
        raise HTTPException(422, f"{given[0].name or 'The image'} cannot be decoded: {given[0].problem}.")
    classes, routed = service.model.classes, domain is None
    rows = [_row(one, answer, classes, topk, routed) for one, answer in zip(given, answers, strict=True)]
    return Predicted(predictions=rows, timing=_timing(given, answers, seconds))


async def _images(request: Request, service: Service) -> list[tuple[str, bytes]]:
    """(name, content) of the images in the body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    most = service.options.max_images
    if kind == "multipart/form-data":
        # Starlette would keep reading other fields into memory without these limits.
        form = await request.form(max_files=most, max_fields=8, max_part_size=MB)
        files = [file for file in form.getlist("images") if isinstance(file, UploadFile)]
        found = [(file.filename or "", await file.read()) for file in files]
        await form.close()
    elif kind == "application/octet-stream" or kind.startswith("image/"):
        found = [("", await request.body())]
    else:
        raise HTTPException(415, "Send an image as the body (image/jpeg, …), or a form with files called `images`.")
    if not found:
        raise HTTPException(422, "The form has no file called `images`.")
    return found


def _row(one: Given, answer: Answer | None, classes: tuple[str, ...], topk: int, routed: bool) -> PredictedImage:
    if answer is None:
        return PredictedImage(name=one.name, error=one.problem)
    ranked = [Ranked(label=classes[number], probability=value) for number, value in answer.ranked[:topk]]
    return PredictedImage(
        name=one.name,
        domain=answer.entry.domain,
        version=answer.entry.version,
        label=ranked[0].label,
        confidence=ranked[0].probability,
        topk=ranked,
        new_domain=routed and answer.entry.domain == SOURCE,
        distance=answer.distance,
    )


def _timing(given: list[Given], answers: list[Answer | None], seconds: float) -> Timing:
    """Decoding is the sum over images, queue and forward are the longest: images share them."""
    good = [answer for answer in answers if answer is not None]
    return Timing(
        decode_ms=1000 * sum(one.seconds for one in given),
        queue_ms=1000 * max(answer.queued for answer in good),
        forward_ms=1000 * max(answer.forward for answer in good),
        total_ms=1000 * seconds,
    )
