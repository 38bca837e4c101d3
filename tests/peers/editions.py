#!/usr/bin/env python3
"""Encodes messages with protobuf's own runtime for Python, to compare our encoding with.

    editions.py encode FOLDER    compiles every .proto file of FOLDER with protoc, writes
                                 FOLDER/all.binpb, and for each line of stdin, a JSON list of
                                 a message's name and its JSON, prints the bytes in
                                 hexadecimal, or `refused`
    editions.py serve FOLDER     serves all services of FOLDER with server reflection, and
                                 echoes every call. --break SERVICE describes one by a file
                                 with an unresolvable reference.
"""

import argparse
import json
import pathlib
import signal
import sys
import threading
from concurrent import futures

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from grpc_reflection.v1alpha import reflection, reflection_pb2
    from grpc_tools import protoc
except ImportError as missing:
    sys.exit(f"editions: {missing}: run `make setup`, and start this with .peers/venv/bin/python")


def compile_files(folder):
    """Returns the descriptor set of all files of a folder, with their imports."""
    out = folder / "all.binpb"
    files = sorted(path.name for path in folder.glob("*.proto"))
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    flags = [f"-I{folder}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}"]
    if protoc.main(["protoc", *flags, *files]) != 0:
        sys.exit("editions: protoc refuses the files")
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def make_pool(files):
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def encode(folder):
    pool = make_pool(compile_files(folder))
    for line in sys.stdin:
        name, value = json.loads(line)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
        try:
            json_format.ParseDict(value, message, descriptor_pool=pool)
            print(message.SerializeToString(deterministic=True).hex())
        except Exception:
            print("refused")


class BrokenReflection(reflection.ReflectionServicer):
    """Describes one service by a file with an unresolvable reference."""

    def __init__(self, names, pool, broken):
        super().__init__(names, pool)
        self.broken = broken

    def _file_containing_symbol(self, *question):
        if question[-1] != self.broken:
            return super()._file_containing_symbol(*question)
        package, service = self.broken.rsplit(".", 1)
        file = descriptor_pb2.FileDescriptorProto(name="broken.proto", package=package)
        method = file.service.add(name=service).method.add(name="Call")
        method.input_type = method.output_type = ".no.such.Message"
        reply = reflection_pb2.FileDescriptorResponse(
            file_descriptor_proto=[file.SerializeToString()]
        )
        return reflection_pb2.ServerReflectionResponse(file_descriptor_response=reply)


def serve(folder, broken):
    files = compile_files(folder)
    pool = make_pool(files)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    names = []
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    for file in files.file:
        for service in file.service:
            name = f"{file.package}.{service.name}"
            names.append(name)
            handlers = {method.name: echo for method in service.method}
            handler = grpc.method_handlers_generic_handler(name, handlers)
            server.add_generic_rpc_handlers((handler,))
    names.append(reflection.SERVICE_NAME)
    if broken:
        from grpc_reflection.v1alpha import reflection_pb2_grpc

        servicer = BrokenReflection(names + [broken], pool, broken)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    else:
        reflection.enable_server_reflection(names, server, pool)
    port = server.add_insecure_port("127.0.0.1:0")
    stop = threading.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stop.set())
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    stop.wait()
    server.stop(1).wait()


parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["encode", "serve"])
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--break", dest="broken")
arguments = parser.parse_args()
if arguments.what == "encode":
    encode(arguments.folder)
else:
    serve(arguments.folder, arguments.broken)
