"""A client of the gRPC server inside SGLang, whose protocol file is not in its wheel."""

from __future__ import annotations

import json
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.integration.support.client import Json

_PACKAGE = "sglang.runtime.v1"
_FIELD = descriptor_pb2.FieldDescriptorProto


def score(address: str, body: Json) -> tuple[int, Json]:
    """Call `Score`; return the status code that it reports and the decoded answer."""
    request_type, response_type = _messages()
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{_PACKAGE}.SglangService/Score",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        answer = call(request_type(json_body=json.dumps(body).encode()), timeout=120)
    return answer.status_code, json.loads(answer.json_body)


def _messages() -> tuple[Any, Any]:
    """`OpenAIRequest` and `OpenAIResponse`, as far as they are used here."""
    file = descriptor_pb2.FileDescriptorProto(
        name="native_grpc_test.proto", package=_PACKAGE, syntax="proto3"
    )
    for name in ("OpenAIRequest", "OpenAIResponse"):
        message = file.message_type.add(name=name)
        message.field.add(
            name="json_body", number=1, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL
        )
    message.field.add(
        name="status_code", number=2, type=_FIELD.TYPE_INT32, label=_FIELD.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("OpenAIRequest", "OpenAIResponse")
    )
    return request, response
