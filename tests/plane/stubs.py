"""Messages and calls of the control plane, made from the .proto files beside this one by protobuf itself.

They share no code with `src`: what both sides agree on, they agree on by the bytes.
"""

import importlib.resources
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

HERE = Path(__file__).parent / "proto"
FILES = ("recover", "fault", "job", "config", "profiling", "pubfault")


@cache
def pool() -> Any:
    """Compile all files into one pool, as one server registers them: names that collide are refused."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "all.bin"
        include = importlib.resources.files("grpc_tools") / "_proto"
        names = [f"{name}.proto" for name in FILES]
        done = protoc.main(["protoc", f"-I{HERE}", f"-I{include}", f"--descriptor_set_out={out}", *names])
        if done != 0:
            raise AssertionError("protoc refused the files")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    made = descriptor_pool.DescriptorPool()
    for each in files.file:
        made.Add(each)
    return made


@cache
def message(name: str) -> Any:
    """Return protobuf's own class of a message."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def services() -> dict[str, dict[str, tuple[Any, Any, bool]]]:
    """Return request class, response class and whether it streams, by service and call."""
    found = {}
    for file in FILES:
        for service in pool().FindFileByName(f"{file}.proto").services_by_name.values():
            found[service.full_name] = {
                call.name: (
                    message(call.input_type.full_name),
                    message(call.output_type.full_name),
                    call.server_streaming,
                )
                for call in service.methods
            }
    return found
